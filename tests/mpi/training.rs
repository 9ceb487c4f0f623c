//! `train_gpt --link mpi` prints what `train_gpt` prints.

use crate::mpirun::{Run, mpirun};
use crate::text;
use burn_pipeline::train::Checkpoints;
use pipeline_examples::train_gpt::run;
use std::ffi::OsString;
use tempfile::tempdir;

/// Long sequences, so that evaluating all held-out ones takes fewer rounds.
pub(crate) const TINY: &[&str] = &[
    "train_gpt",
    "--d-model",
    "16",
    "--layers",
    "4",
    "--heads",
    "2",
    "--seq",
    "128",
    "--batch",
    "8",
    "--steps",
    "6",
    "--lr",
    "0.01",
    "--log",
    "json",
];

/// The losses and gradient norms of JSON lines as printed, with enough digits to distinguish any two numbers.
pub(crate) fn curve(out: &str) -> Vec<(String, String)> {
    let lines = out.lines().filter(|line| line.starts_with('{'));
    let field = |line: &serde_json::Value, name: &str| line[name].to_string();
    let parsed = lines.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    parsed.map(|line| (field(&line, "loss"), field(&line, "gradient_norm"))).collect()
}

#[test]
fn train_gpt_over_processes_has_the_losses_of_threads_bit_for_bit() {
    let sharded = ["--schedule", "ZBVZeroBubble", "--data-parallel", "2", "--microbatches", "2", "--sharded"];
    for (ranks, replicas, flags) in [
        (2, 1, &[][..]),
        (4, 1, &["--schedule", "ZBH1"]),
        (2, 1, &["--schedule", "ZBVZeroBubble"]),
        (4, 2, &["--data-parallel", "2"]),
        (4, 2, &sharded),
    ] {
        let (here, there) = (tempdir().unwrap(), tempdir().unwrap());
        let count = (ranks / replicas).to_string();
        let threads = [TINY, flags, &["--ranks", &count, "--trace", text(&here)]].concat();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = run(threads.iter().map(OsString::from), &mut out, &mut err);
        assert_eq!(code, 0, "{}", String::from_utf8_lossy(&err));
        let expected = curve(&String::from_utf8(out).unwrap());
        assert_eq!(expected.len(), 6);
        let processes = [TINY, flags, &["--link", "mpi", "--trace", text(&there)]].concat();
        let Run { code, out, err, left, .. } = mpirun(ranks, &[], &processes);
        assert_eq!(code, Some(0), "{ranks} ranks, {flags:?}: {out}{err}");
        assert_eq!(curve(&out), expected, "{ranks} ranks, {flags:?}");
        assert!(left.is_empty(), "{left:?}");
        assert!(there.path().join("timeline.svg").exists(), "rank 0 writes the timeline");
        let text = |err: &str| err.split("a sample at").nth(1).map(str::to_owned);
        assert!(text(&err).is_some(), "{err}");
    }
}

/// Every number of a line except times.
fn numbers(out: &str) -> Vec<serde_json::Value> {
    let lines = out.lines().filter(|line| line.starts_with('{'));
    let mut lines: Vec<serde_json::Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in &mut lines {
        for time in ["step_seconds", "tokens_per_second"] {
            assert!(line.as_object_mut().unwrap().remove(time).is_some());
        }
    }
    lines
}

#[test]
fn train_moe_over_processes_tells_the_losses_and_loads_of_threads() {
    let experts = "--experts 4 --d-hidden 8 --pattern DEe --bos 10 --capacity 1.0 --ahead E --relations --rotary";
    let experts: Vec<&str> = experts.split_whitespace().collect();
    let tiny: Vec<&str> = ["train_moe"].into_iter().chain(TINY[1..].iter().copied()).chain(experts).collect();
    for (ranks, flags) in [(2, &[][..]), (2, &["--schedule", "ZBVZeroBubble"])] {
        let (here, there) = (tempdir().unwrap(), tempdir().unwrap());
        let count = ranks.to_string();
        let threads = [&tiny, flags, &["--ranks", &count, "--trace", text(&here)]].concat();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = pipeline_examples::train_moe::run(threads.iter().map(OsString::from), &mut out, &mut err);
        assert_eq!(code, 0, "{}", String::from_utf8_lossy(&err));
        let expected = numbers(&String::from_utf8(out).unwrap());
        assert!(expected.len() == 6 && expected.iter().all(|line| line["dropped"].as_f64().unwrap() > 0.0));
        let processes = [&tiny, flags, &["--link", "mpi", "--trace", text(&there)]].concat();
        let Run { code, out, err, left, .. } = mpirun(ranks, &[], &processes);
        assert_eq!(code, Some(0), "{flags:?}: {out}{err}");
        assert_eq!(numbers(&out), expected, "{flags:?}");
        assert!(left.is_empty(), "{left:?}");
        assert!(there.path().join("expert_load.svg").exists(), "rank 0 writes the experts' load");
        assert!(err.contains("a sample at temperature"), "{err}");
    }
}

#[test]
fn train_moe_goes_on_from_a_checkpoint_over_processes_and_over_threads() {
    let tiny = "train_moe --d-model 16 --layers 4 --heads 2 --seq 128 --batch 8 --steps 6 --lr 0.01 --log json \
                --experts 4 --d-hidden 8 --pattern DEe --bias-rate 0.01 --scoring sigmoid";
    let tiny: Vec<&str> = tiny.split_whitespace().collect();
    let (saved, traces) = (tempdir().unwrap(), tempdir().unwrap());
    let traces = ["--trace", text(&traces)];
    let save = ["--save", text(&saved), "--save-every", "2"];
    let on_threads = |flags: &[&str]| {
        let threads = [&tiny, flags, &traces].concat();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = pipeline_examples::train_moe::run(threads.iter().map(OsString::from), &mut out, &mut err);
        assert_eq!(code, 0, "{flags:?}: {}", String::from_utf8_lossy(&err));
        numbers(&String::from_utf8(out).unwrap())
    };
    let on_processes = |ranks, flags: &[&str]| {
        let Run { code, out, err, left, .. } =
            mpirun(ranks, &[], &[&tiny, flags, &["--link", "mpi"], &traces].concat());
        assert_eq!(code, Some(0), "{flags:?}: {out}{err}");
        assert!(left.is_empty(), "{left:?}");
        numbers(&out)
    };
    let whole = on_threads(&[]);
    assert_eq!(on_processes(2, &save), whole);
    // Simulates a run that was ended after its fourth step; copies the state each time.
    let stopped = || {
        let last = Checkpoints::new(saved.path()).latest().unwrap();
        assert_eq!(last.progress().steps, 6);
        std::fs::remove_dir_all(last.folder()).unwrap();
        std::fs::write(saved.path().join("LATEST"), "step-00000004").unwrap();
        [&save[..], &["--resume"]].concat()
    };
    assert_eq!(on_processes(2, &stopped()), whole[4..]);
    assert_eq!(on_processes(4, &stopped()), whole[4..]);
    assert_eq!(on_threads(&stopped()), whole[4..]);
    assert_eq!(on_threads(&[&stopped()[..], &["--schedule", "GPipe", "--ranks", "1"]].concat()), whole[4..]);
}

#[test]
fn flags_that_no_run_can_have_end_every_rank_with_a_message() {
    let Run { code, err, left, .. } = mpirun(2, &[], &[TINY, &["--link", "mpi", "--ranks", "3"]].concat());
    assert!(code.is_some_and(|code| code != 0), "{err}");
    assert!(err.contains("the plan has 3 rank(s), but the link has 2"), "{err}");
    assert!(left.is_empty(), "{left:?}");
}
