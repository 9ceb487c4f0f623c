//! The command line as a user sees it: output, exit codes, messages.
//!
//! `plans`: schedules, checks. `timelines`: simulations, comparisons, overlap. `models`: cuts and the planner.
//! `failures`.

mod failures;
mod models;
mod plans;
mod timelines;

use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_burn-pipeline");

struct Outcome {
    code: i32,
    out: String,
    err: String,
}

fn run(arguments: &str) -> Outcome {
    let output = Command::new(PROGRAM).args(arguments.split_whitespace()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let outcome = Outcome { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) };
    assert!(!outcome.err.contains("panicked"), "{arguments}: {}", outcome.err);
    outcome
}

/// The output of a command that must succeed.
fn print(arguments: &str) -> String {
    let outcome = run(arguments);
    assert_eq!((outcome.code, outcome.err.as_str()), (0, ""), "{arguments}");
    outcome.out
}

/// A file with this text, in a folder of this test binary.
fn file(name: &str, text: &str) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn near(value: &Value, expected: f64) -> bool {
    (value.as_f64().unwrap() - expected).abs() < 1e-9
}

/// Eight blocks, and a head with the weight of five. Each test has its own file, since tests run in parallel.
fn model(test: &str) -> String {
    let kinds = r#"{"kind": "E", "parameters": 1000, "bytes": {"f32": 4000}, "output_bytes": 64},
        {"kind": "A", "forward": 1, "input": 1, "weight": 1, "flops": 8, "activation_bytes": 100, "output_bytes": 64},
        {"kind": "L", "forward": 5, "input": 5, "weight": 5, "flops": 40}"#;
    file(&format!("{test}.json"), &format!(r#"{{"kinds": [{kinds}], "pattern": "EA*4|A*4L"}}"#))
}
