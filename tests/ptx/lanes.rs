//! What the lanes of a warp exchange. Each test has 32 threads that read their own number from the first operand.

use crate::threads;

/// The results of a body over one warp, whose lane is in `%r1`, and three times of it in `%r2`.
fn warp(body: &str) -> Vec<u32> {
    let operands: Vec<[u64; 3]> = (0..32).map(|lane| [lane, lane * 3, 0]).collect();
    let body = format!("{body}\ncvt.u64.u32 %rd9, %r9;");
    threads(&body, &operands).into_iter().map(|value| value as u32).collect()
}

fn each(of: impl Fn(u32) -> u32) -> Vec<u32> {
    (0..32).map(of).collect()
}

#[test]
fn shuffles() {
    assert_eq!(warp("shfl.sync.bfly.b32 %r9, %r1, 5, 31, -1;"), each(|lane| lane ^ 5));
    assert_eq!(warp("shfl.sync.up.b32 %r9, %r1, 3, 0, -1;"), each(|lane| if lane < 3 { lane } else { lane - 3 }));
    assert_eq!(warp("shfl.sync.down.b32 %r9, %r1, 4, 31, -1;"), each(|lane| if lane > 27 { lane } else { lane + 4 }));
    assert_eq!(warp("shfl.sync.idx.b32 %r9, %r2, 9, 31, -1;"), each(|_| 27));
    // Segments of 8 lanes.
    assert_eq!(warp("shfl.sync.idx.b32 %r9, %r1, 2, 0x181F, -1;"), each(|lane| (lane & !7) + 2));
    let bound = "shfl.sync.down.b32 %r9|%p1, %r1, 1, 0x181F, -1;\nselp.b32 %r9, 1, 0, %p1;";
    assert_eq!(warp(bound), each(|lane| u32::from(lane % 8 != 7)));
}

#[test]
fn shuffles_between_the_lanes_of_one_side() {
    let body = "mov.u32 %r9, 99;\nand.b32 %r4, %r1, 1;\nsetp.eq.s32 %p1, %r4, 0;\n@%p1 bra $L_end;\nactivemask.b32 %r5;\n\
                shfl.sync.bfly.b32 %r9, %r1, 2, 31, %r5;\n$L_end:\n";
    assert_eq!(warp(body), each(|lane| if lane % 2 == 0 { 99 } else { lane ^ 2 }));
}

#[test]
fn votes() {
    let of = |vote: &str| format!("setp.lt.u32 %p1, %r1, 5;\n{vote}");
    assert_eq!(warp(&of("vote.sync.ballot.b32 %r9, %p1, -1;")), each(|_| 31));
    let told = |vote: &str| of(&format!("{vote} %p2, %p1, -1;\nselp.b32 %r9, 1, 0, %p2;"));
    assert_eq!(warp(&told("vote.sync.all.pred")), each(|_| 0));
    assert_eq!(warp(&told("vote.sync.any.pred")), each(|_| 1));
    let none = "setp.gt.u32 %p1, %r1, 40;\nvote.sync.uni.pred %p2, %p1, -1;\nselp.b32 %r9, 1, 0, %p2;";
    assert_eq!(warp(none), each(|_| 1));
}

#[test]
fn special_registers() {
    assert_eq!(warp("mov.u32 %r9, %laneid;"), each(|lane| lane));
    assert_eq!(warp("mov.u32 %r9, %lanemask_lt;"), each(|lane| (1 << lane) - 1));
    assert_eq!(warp("mov.u32 %r9, %ntid.x;"), each(|_| 32));
}
