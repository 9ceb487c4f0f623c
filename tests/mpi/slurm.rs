//! `--processes` in a Slurm job, with the variables that Slurm sets.

use crate::text;
use std::process::{Command, Output};
use tempfile::tempdir;

/// The variables of a batch script with room for four processes on two machines.
const BATCH: &[(&str, &str)] = &[
    ("SLURM_JOB_ID", "7"),
    ("SLURM_JOB_NODELIST", "n[1-2]"),
    ("SLURM_NODELIST", "n[1-2]"),
    ("SLURM_NNODES", "2"),
    ("SLURM_NTASKS", "4"),
    ("SLURM_TASKS_PER_NODE", "2(x2)"),
    ("SLURM_PROCID", "0"),
];

/// Trains two steps in two processes, started with these variables.
fn train(variables: &[(&str, &str)]) -> Output {
    let folder = tempdir().unwrap();
    let flags = "train_gpt --d-model 16 --layers 2 --heads 2 --seq 128 --batch 8 --steps 2 --log json --processes 2";
    let mut command = Command::new(env!("CARGO_BIN_EXE_ranks"));
    command.args(flags.split(' ')).args(["--trace", text(&folder), "a-mark"]);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.envs(variables.iter().copied()).output().unwrap()
}

#[test]
fn a_batch_script_starts_its_processes_where_it_runs() {
    let output = train(BATCH);
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(out.lines().count(), 2, "{out}");
}

#[test]
fn a_process_that_srun_has_started_beside_others_starts_none() {
    let step = [BATCH, &[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "4")]].concat();
    let output = train(&step);
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains("Slurm has started this process already"), "{err}");
}
