//! One command trains on with the processes that are left when some are killed.

use crate::checkpoints::Folder;
use crate::mpirun::Turn;
use crate::random::Random;
use pipeline_examples::run;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

const STEPS: usize = 80;

fn flags(trace: &str) -> Vec<String> {
    let flags = format!(
        "train_gpt --d-model 16 --layers 4 --heads 2 --seq 16 --batch 8 --steps {STEPS} --lr 0.01 --log json --trace {trace}"
    );
    flags.split(' ').map(str::to_owned).collect()
}

/// A line's step, with its loss and gradient norm as they are printed.
fn record(line: &str) -> (usize, [String; 2]) {
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    (line["step"].as_u64().unwrap() as usize, [line["loss"].to_string(), line["gradient_norm"].to_string()])
}

/// What threads tell that nobody stops.
fn uninterrupted() -> BTreeMap<usize, [String; 2]> {
    let folder = Folder::new("restart-threads");
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = run::main(flags(folder.text()).into_iter().map(OsString::from), &mut out, &mut err);
    assert_eq!(code, 0, "{}", String::from_utf8_lossy(&err));
    String::from_utf8(out).unwrap().lines().map(record).collect()
}

#[test]
fn killed_processes_are_done_without_and_no_loss_differs() {
    let whole = uninterrupted();
    let (folder, mut random, turn) = (Folder::new("restart"), Random::of_now(), Turn::new());
    let (save, trace) = (folder.0.join("saved"), folder.0.join("trace"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_ranks"));
    command.args(flags(trace.to_str().unwrap())).args(["--processes", "3", "--restart", "--save-every", "3"]);
    command.arg("--save").arg(&save).arg(&turn.mark);
    // What Open MPI asks of those who run it as root, as containers do.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The first kill leaves two processes, the second one.
    let mut kills =
        vec![(3, 5 + random.below(15) as usize), (2, 30 + random.below(15) as usize)].into_iter().peekable();
    let (mut told, mut again) = (BTreeMap::new(), 0);
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let (step, numbers) = record(&line.unwrap());
        if let Some(&(ranks, _)) = kills.peek().filter(|&&(_, at)| step >= at) {
            let rank = random.below(ranks as u64) as usize;
            // Those of the run before tell for a moment on.
            if let Some(process) = turn.process_of(rank, ranks) {
                println!("rank {rank} of {ranks} is killed after it told of step {step}");
                assert!(Command::new("kill").args(["-KILL", &process.to_string()]).status().unwrap().success());
                kills.next();
            }
        }
        assert_eq!(numbers, whole[&step], "step {step}");
        again += usize::from(told.insert(step, numbers).is_some());
    }
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{err}");
    assert_eq!(told, whole);
    for says in [
        "1F1B over 3 rank(s)",
        "going on with 2 of 3",
        "1F1B over 2 rank(s)",
        "going on with 1 of 3",
        "1F1B over 1 rank(s)",
    ] {
        assert!(err.contains(says), "{says}: {err}");
    }
    assert_eq!(err.matches("goes on after step").count(), 2, "{err}");
    println!("{again} steps were run twice");
    assert_eq!(turn.left(), Vec::<String>::new());
}
