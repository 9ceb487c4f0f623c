//! Loads, stores, vectors, variables, atomic changes, and barriers.

use crate::ptx::{Blocks, run};
use crate::{equals, equals32, launch, threads};

#[test]
fn elements_are_extended_as_their_types_say() {
    equals("ld.global.s8 %rd9, [%rd12+1];", |a, _, _| i64::from((a >> 8) as i8) as u64);
    equals32("ld.global.u8 %r9, [%rd12+9];", |_, b, _| b >> 8 & 255);
    equals32("ld.global.nc.s16 %r9, [%rd12+2];", |a, _, _| i32::from((a >> 16) as i16) as u32);
}

#[test]
fn vectors() {
    let operands: Vec<[u64; 3]> = (0..32).map(|lane| [lane, lane + 100, lane * lane]).collect();
    let got = threads("ld.global.v2.b32 {%r4, %r5}, [%rd12+8];\nmov.b64 %rd9, {%r5, %r4};", &operands);
    assert_eq!(got, operands.iter().map(|[_, b, _]| b << 32).collect::<Vec<_>>());
}

#[test]
fn local_memory_is_each_thread_s_own() {
    let body = ".local .align 8 .b8 kept[16];\nmov.b64 %rd4, kept;\nst.local.b64 [%rd4+8], %rd1;\n\
                cvta.local.u64 %rd5, %rd4;\nld.b64 %rd9, [%rd5+8];";
    equals(body, |a, _, _| a);
}

#[test]
fn atomic_changes_return_what_was_there() {
    for (change, after) in [("add", 13), ("max", 10), ("exch", 3), ("xor", 9), ("min", 3)] {
        let kind = if ["exch", "xor"].contains(&change) { "b32" } else { "u32" };
        let body = format!(
            ".local .align 4 .b8 kept[4];\nmov.b64 %rd4, kept;\ncvta.local.u64 %rd5, %rd4;\nst.b32 [%rd5], 10;\n\
             atom.{change}.{kind} %r4, [%rd5], 3;\nld.b32 %r5, [%rd5];\nmov.b64 %rd9, {{%r4, %r5}};"
        );
        equals(&body, |_, _, _| 10 | after << 32);
    }
}

/// 96 threads: each writes its number to shared memory, and after a barrier reads the mirrored one. All of these are
/// added to a place in global memory.
const MIRROR: &str = ".version 8.7\n.target sm_75\n.address_size 64\n.shared .align 4 .b8 numbers[384];\n\
    .visible .entry mirror(.param .u64 mirror_0, .param .u64 mirror_1)\n.reqntid 96, 1, 1\n{\n.reg .b32 %r<9>;\n\
    .reg .b64 %rd<9>;\nld.param.u64 %rd1, [mirror_0];\nld.param.u64 %rd2, [mirror_1];\nmov.u32 %r1, %tid.x;\n\
    mul.wide.u32 %rd3, %r1, 4;\nmov.b64 %rd4, numbers;\nadd.s64 %rd4, %rd4, %rd3;\nst.shared.b32 [%rd4], %r1;\n\
    bar.sync 0;\nsub.s32 %r2, 95, %r1;\nmul.wide.u32 %rd5, %r2, 4;\nmov.b64 %rd6, numbers;\nadd.s64 %rd6, %rd6, %rd5;\n\
    ld.shared.b32 %r3, [%rd6];\nadd.s64 %rd7, %rd1, %rd3;\nst.global.b32 [%rd7], %r3;\n\
    red.global.add.u32 [%rd2], %r3;\nret;\n}\n";

#[test]
fn warps_meet_at_barriers_and_share_memory() {
    let (mut mirrored, mut sum) = (vec![0_u32; 96], vec![0_u32]);
    let params = [mirrored.as_mut_ptr() as u64, sum.as_mut_ptr() as u64];
    let mut blocks = vec![params[0]..params[0] + 384, params[1]..params[1] + 4];
    blocks.sort_by_key(|block| block.start);
    run(&launch(MIRROR, &params, 2, Blocks(blocks)));
    assert_eq!(mirrored, (0..96).rev().collect::<Vec<u32>>());
    assert_eq!(sum, [2 * 95 * 96 / 2]);
}
