//! One command continues training with the remaining processes after some are killed or stopped.

use crate::mpirun::Mark;
use crate::text;
use pipeline_examples::train_gpt::run;
use pipeline_tests::random::Random;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use tempfile::tempdir;

const STEPS: usize = 80;

fn flags(more: &str, trace: &str) -> Vec<String> {
    let flags = format!(
        "train_gpt --d-model 16 --layers 4 --heads 2 --seq 128 --batch 8 --steps {STEPS} --lr 0.01 --log json \
         --trace {trace}{more}"
    );
    flags.split(' ').map(str::to_owned).collect()
}

/// The step, loss and gradient norm of an output line, as printed.
fn record(line: &str) -> (usize, [String; 2]) {
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    (line["step"].as_u64().unwrap() as usize, [line["loss"].to_string(), line["gradient_norm"].to_string()])
}

/// The output of threads that are not interrupted.
fn uninterrupted(more: &str) -> BTreeMap<usize, [String; 2]> {
    let folder = tempdir().unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = run(flags(more, text(&folder)).into_iter().map(OsString::from), &mut out, &mut err);
    assert_eq!(code, 0, "{}", String::from_utf8_lossy(&err));
    String::from_utf8(out).unwrap().lines().map(record).collect()
}

/// A signal to one of a run's processes, the number of these processes, and the step after which it is sent.
type Blow = (&'static str, usize, usize);

/// Runs `processes` processes through the blows and returns the steps printed on standard error. Asserts that every
/// step's numbers are those of an uninterrupted run, and that nothing is left behind.
fn struck(more: &str, processes: usize, blows: &[Blow], random: &mut Random) -> String {
    let whole = uninterrupted(more);
    let (folder, mark) = (tempdir().unwrap(), Mark::new());
    let (save, trace) = (folder.path().join("saved"), folder.path().join("trace"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_ranks"));
    command.args(flags(more, trace.to_str().unwrap())).args(["--processes", &processes.to_string(), "--restart"]);
    command.args(["--save-every", "3", "--timeout", "6", "--save"]).arg(&save).arg(&mark.argument);
    // Open MPI requires these variables when run as root, as in containers.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut blows = blows.iter().peekable();
    let (mut reported, mut again) = (BTreeMap::new(), 0);
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let (step, numbers) = record(&line.unwrap());
        if let Some(&&(signal, ranks, _)) = blows.peek().filter(|&&&(.., at)| step >= at) {
            let rank = random.below(ranks as u64) as usize;
            // Processes of the previous run may still print for a moment.
            if let Some(process) = mark.process_of(rank, ranks) {
                println!("rank {rank} of {ranks} gets {signal} after step {step}");
                assert!(Command::new("kill").args([signal, &process.to_string()]).status().unwrap().success());
                blows.next();
            }
        }
        assert_eq!(numbers, whole[&step], "step {step}");
        again += usize::from(reported.insert(step, numbers).is_some());
    }
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{err}");
    assert_eq!(reported, whole);
    println!("{again} steps were run twice");
    assert_eq!(mark.left(), Vec::<String>::new());
    err
}

fn assert_says(err: &str, words: &[&str]) {
    for says in words {
        assert!(err.contains(says), "{says}: {err}");
    }
}

#[test]
fn killed_processes_are_done_without_and_no_loss_differs() {
    let mut random = Random::of_now();
    // The first kill leaves two processes, the second one.
    let blows = [("-KILL", 3, 5 + random.below(15) as usize), ("-KILL", 2, 30 + random.below(15) as usize)];
    let err = struck("", 3, &blows, &mut random);
    assert_says(
        &err,
        &[
            "1F1B over 3 rank(s)",
            "continuing with 2 of 3",
            "1F1B over 2 rank(s)",
            "continuing with 1 of 3",
            "1F1B over 1 rank(s)",
        ],
    );
    assert_eq!(err.matches("resuming after step").count(), 2, "{err}");
}

#[test]
fn stopped_processes_are_ended_and_done_without() {
    let mut random = Random::of_now();
    let blows = [("-STOP", 3, 5 + random.below(15) as usize), ("-STOP", 2, 30 + random.below(15) as usize)];
    let err = struck("", 3, &blows, &mut random);
    assert_says(&err, &["does not answer (killed, stopped", "continuing with 2 of 3", "continuing with 1 of 3"]);
    assert_eq!(err.matches("resuming after step").count(), 2, "{err}");
}

#[test]
fn replicas_go_on_as_replicas_of_shorter_pipelines() {
    for signal in ["-KILL", "-STOP"] {
        let mut random = Random::of_now();
        let blow = (signal, 4, 5 + random.below(15) as usize);
        let err = struck(" --data-parallel 2", 4, &[blow], &mut random);
        assert_says(
            &err,
            &["1F1B over 2 rank(s)", "continuing with 2 of 4", "1F1B over 1 rank(s)", "in each of 2 replicas"],
        );
    }
}
