//! Loads, stores, vectors, variables, atomic changes, and barriers.

use crate::ptx::{Blocks, run};
use crate::{equals, equals32, launch, operands, threads};

#[test]
fn elements_are_extended_as_their_types_say() {
    equals("ld.global.s8 %rd9, [%rd12+1];", |a, _, _| i64::from((a >> 8) as i8) as u64);
    equals32("ld.global.u8 %r9, [%rd12+9];", |_, b, _| b >> 8 & 255);
    equals32("ld.global.nc.s16 %r9, [%rd12+2];", |a, _, _| i32::from((a >> 16) as i16) as u32);
}

#[test]
fn parameters_are_read_in_parts() {
    let whole = |body: &str| threads(&format!("{body}\nsub.s64 %rd9, %rd4, %rd10;"), &operands());
    let parts = [
        "ld.param.v2.b32 {%r4, %r5}, [k_0];\nmov.b64 %rd4, {%r4, %r5};".to_owned(),
        bytes_of_parameter(16, |place| format!("ld.param.b16 %rs4, [k_0+{place}];\ncvt.u64.u16 %rd5, %rs4;")),
        bytes_of_parameter(8, |place| format!("ld.param.b8 %rs4, [k_0+{place}];\ncvt.u64.u16 %rd5, %rs4;")),
        bytes_of_parameter(16, |place| {
            format!(
                "ld.param.v2.b8 {{%rs4, %rs5}}, [k_0+{place}];\nshl.b16 %rs5, %rs5, 8;\nor.b16 %rs4, %rs4, %rs5;\n\
                     cvt.u64.u16 %rd5, %rs4;"
            )
        }),
    ];
    for body in parts {
        assert!(whole(&body).iter().all(|difference| *difference == 0), "{body}");
    }
}

/// Puts the first parameter together in `%rd4`, from parts that `load` loads into `%rd5`, given their places in bytes.
fn bytes_of_parameter(bits: usize, load: impl Fn(usize) -> String) -> String {
    let part = |place: usize| format!("{}\nshl.b64 %rd4, %rd4, {bits};\nor.b64 %rd4, %rd4, %rd5;\n", load(place / 8));
    let parts: String = (0..64).step_by(bits).rev().map(part).collect();
    format!("mov.b64 %rd4, 0;\n{parts}")
}

/// Runs 32 threads. Each loads from its 16 bytes of one block of memory and stores to those of another one. In `load`
/// and `store`, `%rd1` and `%rd2` are the addresses, `%rd3` that of 16 bytes of its own in shared memory.
fn copied(load: &str, store: &str) -> Vec<u8> {
    let text = format!(
        ".version 8.7\n.target sm_75\n.address_size 64\n.shared .align 16 .b8 common[512];\n\
         .visible .entry copy(.param .u64 copy_0, .param .u64 copy_1)\n.reqntid 32, 1, 1\n{{\n.reg .b16 %rs<9>;\n\
         .reg .b32 %r<9>;\n.reg .b64 %rd<20>;\nld.param.u64 %rd1, [copy_0];\nld.param.u64 %rd2, [copy_1];\n\
         mov.u32 %r8, %tid.x;\nmad.wide.u32 %rd1, %r8, 16, %rd1;\nmad.wide.u32 %rd2, %r8, 16, %rd2;\n\
         mov.b64 %rd3, common;\nmad.wide.u32 %rd3, %r8, 16, %rd3;\n{load}\n{store}\nret;\n}}\n"
    );
    let (from, mut to) = (sources(), vec![0_u128; 32]);
    let params = [from.as_ptr() as u64, to.as_mut_ptr() as u64];
    let mut blocks = params.map(|start| start..start + 512).to_vec();
    blocks.sort_by_key(|block| block.start);
    run(&launch(&text, &params, 1, Blocks(blocks)));
    to.into_iter().flat_map(u128::to_le_bytes).collect()
}

/// 16 bytes for each thread, all different.
fn sources() -> Vec<u128> {
    let bytes =
        |thread: u8| std::array::from_fn(|place| (thread * 7).wrapping_add((place as u8).wrapping_mul(37)) ^ 0x5A);
    (0..32).map(|thread| u128::from_le_bytes(bytes(thread))).collect()
}

/// The instruction for each part of a vector, or the one for all of it.
fn accesses(name: &str, address: &str, [bits, count]: [usize; 2], whole: bool) -> String {
    let class = ["%rs", "%rs", "%r", "%rd1"][bits.ilog2() as usize - 3];
    let registers: Vec<String> = (0..count).map(|part| format!("{class}{part}")).collect();
    let one = |place: usize, kind: &str, value: &str| match name.starts_with("ld") {
        true => format!("{name}{kind}.b{bits} {value}, [{address}+{place}];\n"),
        false => format!("{name}{kind}.b{bits} [{address}+{place}], {value};\n"),
    };
    if whole && count > 1 {
        return one(0, &format!(".v{count}"), &format!("{{{}}}", registers.join(", ")));
    }
    registers.iter().enumerate().map(|(part, register)| one(part * bits / 8, "", register)).collect()
}

/// A vector is loaded whole and stored in parts, and loaded in parts and stored whole.
#[test]
fn vectors_are_the_parts_that_follow_each_other_in_every_memory() {
    let through = |load: &str| format!("{}{load}", copy("ld.global", "%rd1", "st.shared", "%rd3"));
    let back = |store: &str| {
        let zeros = "mov.b64 %rd4, 0;\nst.shared.b64 [%rd3], %rd4;\nst.shared.b64 [%rd3+8], %rd4;\n";
        format!("{zeros}{store}{}", copy("ld.shared", "%rd3", "st.global", "%rd2"))
    };
    for size in [[8, 1], [8, 2], [8, 4], [16, 1], [16, 2], [16, 4], [32, 1], [32, 2], [32, 4], [64, 1], [64, 2]] {
        for whole in [true, false] {
            let load = |name: &str, address: &str| accesses(name, address, size, whole);
            let loads = [load("ld.global", "%rd1"), load("ld.global.nc", "%rd1"), through(&load("ld.shared", "%rd3"))];
            let store = |name: &str, address: &str| accesses(name, address, size, !whole);
            let stores = [store("st.global", "%rd2"), back(&store("st.shared", "%rd3"))];
            let bytes = size[0] * size[1] / 8;
            let first = |all: u128| if bytes == 16 { all } else { all & ((1 << (8 * bytes)) - 1) };
            let expected: Vec<u8> = sources().into_iter().flat_map(|all| first(all).to_le_bytes()).collect();
            for (load, store) in loads.iter().flat_map(|load| stores.iter().map(move |store| (load, store))) {
                assert_eq!(copied(load, store), expected, "{load}\n{store}");
            }
        }
    }
}

/// Copies 16 bytes.
fn copy(load: &str, from: &str, store: &str, to: &str) -> String {
    let one = |place| format!("{load}.b64 %rd5, [{from}+{place}];\n{store}.b64 [{to}+{place}], %rd5;\n");
    format!("{}{}", one(0), one(8))
}

#[test]
fn local_memory_is_each_thread_s_own() {
    let body = ".local .align 8 .b8 kept[16];\nmov.b64 %rd4, kept;\nst.local.b64 [%rd4+8], %rd1;\n\
                cvta.local.u64 %rd5, %rd4;\nld.b64 %rd9, [%rd5+8];";
    equals(body, |a, _, _| a);
    let body = ".local .align 8 .b8 kept[16];\nmov.b64 %rd4, kept;\nst.local.b32 [%rd4+4], %r1;\n\
                st.local.b32 [%rd4], %r2;\nld.local.b32 %r9, [%rd4+4];";
    equals32(body, |a, _, _| a);
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

/// Every thread adds 3 to the first thread's place, and stores what was there.
#[test]
fn atomic_sums_of_all_threads_lose_nothing() {
    let values = [
        ("u32", "%r", 3),
        ("f32", "%r", u64::from(3_f32.to_bits())),
        ("u64", "%rd", 3),
        ("f64", "%rd", 3_f64.to_bits()),
    ];
    for (kind, class, value) in values {
        let bits = &kind[1..];
        let add = format!(
            "ld.param.u64 %rd4, [copy_1];\nmov.b{bits} {class}5, {value};\n\
             atom.global.add.{kind} {class}6, [%rd4], {class}5;"
        );
        let got = copied(&add, &format!("st.global.b{bits} [%rd2+8], {class}6;"));
        let number = |place: usize| {
            let bits = u64::from_le_bytes(got[place..place + 8].try_into().unwrap());
            match kind {
                "f32" => f64::from(f32::from_bits(bits as u32)),
                "f64" => f64::from_bits(bits),
                _ => bits as f64,
            }
        };
        let mut before: Vec<f64> = (0..32).map(|thread| number(thread * 16 + 8)).collect();
        before.sort_by(f64::total_cmp);
        assert_eq!((number(0), before), (96.0, (0..32).map(|count| f64::from(3 * count)).collect()), "{kind}");
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
