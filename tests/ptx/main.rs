//! The interpreter of PTX in the mock of CUDA's driver (`nccl/stand_in/library/ptx`): each family of instructions
//! against the processor's own arithmetic or a closed formula.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod arithmetic;
#[path = "../nccl/stand_in/library/broken.rs"]
#[allow(unreachable_pub, reason = "the mock's own visibility")]
mod broken;
mod comparisons;
mod conversions;
mod flow;
mod lanes;
mod memory;
#[path = "../nccl/stand_in/library/ptx/mod.rs"]
#[allow(dead_code, missing_debug_implementations, unreachable_pub, unused_imports, reason = "the mock's own, and more")]
mod ptx;
mod refusals;

use ptx::{Blocks, Launch, Module, run};
use std::sync::Arc;

/// Values near the ends of integers of all widths, and floats of both precisions: zeros, subnormal, infinite, NaN.
const VALUES: [u64; 32] = [
    0,
    1,
    2,
    3,
    31,
    32,
    33,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFF_FFFF,
    0x8000_0000,
    0xFFFF_FFFF,
    0x3F80_0000,
    0xBFC0_0000,
    0x4048_F5C3,
    0x0000_0101,
    0x7F80_0000,
    0xFF80_0000,
    0x7FC0_0001,
    0x3EAA_AAAB,
    0x4B00_0001,
    0x7FFF_FFFF_FFFF_FFFF,
    0x8000_0000_0000_0000,
    u64::MAX,
    0x3FF0_0000_0000_0000,
    0xC008_0000_4000_0000,
    0x0123_4567_89AB_CDEF,
    0x7FF8_0000_0000_0000,
];

/// Three operands for each thread: every pair of the values above, and a third one.
fn operands() -> Vec<[u64; 3]> {
    let of = |a: usize, b: usize| [VALUES[a], VALUES[b], VALUES[(a * 7 + b * 3 + 5) % 32]];
    (0..32).flat_map(|a| (0..32).map(move |b| of(a, b))).collect()
}

/// The results of a body over threads, one for each line of operands, which are in `%rd1` to `%rd3`, and cut in `%r1`
/// to `%r3` and `%rs1` to `%rs3`. The result is in `%rd9`.
fn threads(body: &str, operands: &[[u64; 3]]) -> Vec<u64> {
    let text = format!(
        ".version 8.7\n.target sm_75\n.address_size 64\n.visible .entry k(\n.param .u64 .ptr .align 1 k_0,\n\
         .param .u64 k_1\n)\n.reqntid 32, 1, 1\n{{\n.reg .pred %p<9>;\n.reg .b16 %rs<10>;\n.reg .b32 %r<20>;\n\
         .reg .b64 %rd<20>;\nld.param.b64 %rd10, [k_0];\nld.param.b64 %rd11, [k_1];\nmov.u32 %r10, %ctaid.x;\n\
         mov.u32 %r11, %tid.x;\nmad.lo.s32 %r12, %r10, 32, %r11;\nmad.wide.u32 %rd12, %r12, 24, %rd10;\n\
         ld.global.b64 %rd1, [%rd12];\nld.global.b64 %rd2, [%rd12+8];\nld.global.b64 %rd3, [%rd12+16];\n\
         cvt.u32.u64 %r1, %rd1;\ncvt.u32.u64 %r2, %rd2;\ncvt.u32.u64 %r3, %rd3;\ncvt.u16.u64 %rs1, %rd1;\n\
         cvt.u16.u64 %rs2, %rd2;\ncvt.u16.u64 %rs3, %rd3;\nmov.b64 %rd9, 0;\n{body}\n\
         mad.wide.u32 %rd13, %r12, 8, %rd11;\nst.global.b64 [%rd13], %rd9;\nret;\n}}\n"
    );
    let mut results = vec![0_u64; operands.len()];
    let (from, to) = (operands.as_ptr() as u64, results.as_mut_ptr() as u64);
    let (read, written) = (from..from + 24 * operands.len() as u64, to..to + 8 * results.len() as u64);
    let mut blocks = vec![read.clone(), written.clone()];
    blocks.sort_by_key(|block| block.start);
    let mut touched = run(&launch(&text, &[from, to], operands.len() as u32 / 32, Blocks(blocks)));
    // What a kernel has touched is what it was given, to the word.
    assert_eq!((touched.ranges(false), touched.ranges(true)), (vec![read], vec![written]));
    results
}

/// The launch of a text's only kernel.
fn launch(text: &str, params: &[u64], blocks: u32, memory: Blocks) -> Launch {
    let module = Module::parse(text);
    let kernel = module.kernels.into_iter().next().unwrap();
    Launch {
        threads: kernel.threads.unwrap(),
        kernel: Arc::new(kernel),
        variables: module.variables.iter().map(|&(start, bytes)| start..start + bytes as u64).collect(),
        params: params.iter().flat_map(|param| param.to_le_bytes()).collect(),
        blocks: [blocks, 1, 1],
        shared: 0,
        memory,
    }
}

/// Compares an instruction with a function of its operands, over all operands.
fn equals(body: &str, expected: impl Fn(u64, u64, u64) -> u64) {
    let operands = operands();
    for ([a, b, c], got) in operands.iter().zip(threads(body, &operands)) {
        let wanted = expected(*a, *b, *c);
        assert!(got == wanted, "{body}: of {a:#x}, {b:#x}, {c:#x}: {got:#x} instead of {wanted:#x}");
    }
}

/// The same for a result of 32 bits in `%r9`.
fn equals32(instruction: &str, expected: impl Fn(u32, u32, u32) -> u32) {
    let of = |a, b, c| u64::from(expected(a as u32, b as u32, c as u32));
    equals(&format!("{instruction}\ncvt.u64.u32 %rd9, %r9;"), of);
}

/// The same for a result of 16 bits in `%rs9`.
fn equals16(instruction: &str, expected: impl Fn(u16, u16, u16) -> u16) {
    let of = |a, b, c| u64::from(expected(a as u16, b as u16, c as u16));
    equals(&format!("{instruction}\ncvt.u64.u16 %rd9, %rs9;"), of);
}
