//! What the interpreter does not know, and what kernels must not do, ends the process by name.

use crate::{operands, threads};
use std::process::Command;

const CASES: [(&str, &str); 11] = [
    ("mma.sync.aligned.m16n8k8.row.col.f32.f32 %r1, %r2;", "the instruction is not known: mma.sync"),
    ("add.rz.f32 %r9, %r1, %r2;", "the instruction is not known: add.rz.f32"),
    ("cvt.rz.f32.f64 %r9, %rd1;", "the instruction is not known: cvt.rz.f32.f64"),
    ("tex.1d.v4.f32.s32 {%r1, %r2, %r3, %r4}, [%rd1, {%r1}];", "the instruction is not known: tex"),
    ("add.s32 %r9, %r1, %q2;", "an operand is not known"),
    ("bra $L_nowhere;", "there is no label $L_nowhere"),
    ("ld.global.b32 %r9, [%rd12+40000000];", "a kernel uses memory that is allocated: k reads 4 bytes"),
    ("st.global.b32 [%rd12+2], %r1;", "a kernel's access is aligned: k writes 4 bytes"),
    ("st.shared.b32 [%rd9], %r1;", "a kernel uses memory that it has: k writes 4 bytes at 0x0 of Shared"),
    ("setp.lt.u32 %p1, %r11, 3;\n@%p1 bar.sync 0;", "all threads of a block reach its barrier: k: lanes 0x7"),
    (
        "setp.lt.u32 %p1, %r11, 3;\n@%p1 shfl.sync.bfly.b32 %r9, %r1, 1, 31, -1;",
        "the lanes of a mask are in step: k: lanes 0x7",
    ),
];

/// Runs a case in a process of its own.
#[test]
#[ignore = "a process of the other test"]
fn a_case() {
    let case: usize = std::env::var("CASE").unwrap().parse().unwrap();
    threads(CASES[case].0, &operands());
}

#[test]
fn what_is_not_known_or_not_allowed_ends_the_process_by_name() {
    for (case, (body, message)) in CASES.iter().enumerate() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "refusals::a_case", "--ignored", "--nocapture"]).env("CASE", case.to_string());
        let ended = command.output().unwrap();
        let text = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.code() == Some(70) && text.contains(message), "{body}: {text}");
    }
}
