//! Kernels and pipelines on a stand-in for CUDA's driver, which interprets the PTX that CubeCL emits: this test program
//! itself, in a process whose only device is CUDA's.

#[path = "../nccl/stand_in/folder.rs"]
mod folder;

use folder::{folder, variables};
use std::process::Command;

/// Runs this program's tests of some modules over the stand-in. Returns how many have passed.
fn passed(modules: &[&str]) -> usize {
    let rooms = folder().join("rooms");
    std::fs::create_dir_all(&rooms).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(modules).args(["--test-threads", "1"]).envs(variables(folder(), &rooms));
    let ended = command.output().unwrap();
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success(), "{text}{}", String::from_utf8_lossy(&ended.stderr));
    let counted = text.lines().find_map(|line| line.strip_prefix("test result: ok. ")?.split(' ').next());
    counted.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

#[test]
fn kernels_of_experts_interpreted_as_ptx_equal_the_composed_form() {
    assert!(passed(&["kernels::"]) > 30);
}

#[test]
fn pipelines_and_backwards_interpreted_as_ptx_equal_the_plain_loop() {
    assert!(passed(&["training::", "moe::", "seam::", "mixed::"]) > 8);
}
