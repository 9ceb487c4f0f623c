//! A refused capture prints nothing, and a program's own panics are still printed.

use crate::split::models::{Looking, Running, WIDTH, noise};
use burn_pipeline::payload::{Boundary, Payload};
use burn_pipeline::stage::{SingleStage, SplitBackward, StageBox};
use std::process::Command;

/// Runs in its own process, whose standard error the test below reads.
#[test]
#[ignore = "run by the test below"]
fn refusals() {
    for stage in [StageBox::new(Looking::new()), StageBox::new(Running::new())] {
        let mut stage = SingleStage::new(stage, SplitBackward::Auto, true);
        stage.forward(0, noise([4, WIDTH]).into_payload(), Payload::default()).unwrap();
        assert!(!stage.report().captured);
    }
    std::panic::catch_unwind(|| panic!("my own panic")).unwrap_err();
}

#[test]
fn nothing_is_printed_of_a_refused_capture() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["host::noise::refusals", "--exact", "--ignored", "--nocapture"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("panicked at").count(), 1, "{said}");
    assert!(said.contains("my own panic"), "{said}");
}
