//! Ranks on several machines, started by `mpirun` with a hostfile, over `ssh`.
//!
//! They need root and Debian's `iproute2` and `openssh-server`, so they are ignored by default:
//! `cargo test --workspace --features pipeline-tests/mpi --test mpi machines -- --ignored`.

use crate::mpirun::{Run, run};
use crate::text;
use crate::training::{TINY, curve};
use pipeline_tests::at_once::for_each_at_once;
use pipeline_tests::machines::Machines;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::tempdir;

/// The last argument of every rank.
const MARK: &str = "a-rank-on-a-machine";

/// The command that a user types on the first machine.
fn mpirun(machines: &Machines, slots: usize, ranks: usize, flags: &[&str], arguments: &[&str]) -> Command {
    let mut command = machines.command(0, "mpirun");
    command.arg("--hostfile").arg(machines.hostfile(slots)).args(["-n", &ranks.to_string(), "--allow-run-as-root"]);
    command.args(flags).arg(env!("CARGO_BIN_EXE_ranks")).args(arguments).arg(MARK);
    command
}

/// The processes and shared memory that remain on these machines after a while.
fn left(machines: &Machines, on: &[usize]) -> Vec<String> {
    let look = || {
        let names = [MARK, "orted", "/usr/bin/ssh"];
        let processes = on.iter().flat_map(|&machine| names.map(|name| machines.processes(machine, name)));
        let processes = processes.flatten();
        let memory = on.iter().flat_map(|&machine| machines.shared_memory(machine));
        processes.chain(memory).collect::<Vec<_>>()
    };
    let since = Instant::now();
    while !look().is_empty() && since.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(50));
    }
    look()
}

#[test]
#[ignore = "makes networks: needs root, iproute2 and openssh-server"]
fn train_gpt_over_several_machines_has_the_losses_of_threads_bit_for_bit() {
    for (count, slots, ranks) in [(2, 1, 2), (2, 2, 4), (3, 1, 3)] {
        let (here, there) = (tempdir().unwrap(), tempdir().unwrap());
        let number = ranks.to_string();
        let threads = [TINY, &["--ranks", &number, "--trace", text(&here)]].concat();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = pipeline_examples::train_gpt::run(threads.iter().map(OsString::from), &mut out, &mut err);
        assert_eq!(code, 0, "{}", String::from_utf8_lossy(&err));
        let expected = curve(&String::from_utf8(out).unwrap());
        assert_eq!(expected.len(), 6);
        let machines = Machines::start_with_ssh(count);
        let processes = [TINY, &["--link", "mpi", "--trace", text(&there)]].concat();
        let Run { code, out, err, .. } = run(&mut mpirun(&machines, slots, ranks, &[], &processes));
        assert_eq!(code, Some(0), "{ranks} ranks on {count} machines: {out}{err}");
        assert_eq!(curve(&out), expected, "{ranks} ranks on {count} machines");
        let all: Vec<usize> = (0..count).collect();
        assert_eq!(left(&machines, &all), Vec::<String>::new());
    }
}

/// A machine's failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Its cable is pulled, and it continues to run.
    Cut,
    /// It loses power: no connection is closed, and nothing answers.
    Dark,
    /// All its processes are killed: connections are closed.
    Ended,
}

/// The timeout of a wait in these runs.
const DEADLINE: &str = "6";
/// The time within which such a run must end.
const LIMIT: Duration = Duration::from_secs(60);

/// Makes `mpirun` notice a silent machine before the ranks' timeout.
const KEEPALIVE: &[&str] = &[
    "--mca",
    "oob_tcp_keepalive_time",
    "2",
    "--mca",
    "oob_tcp_keepalive_intvl",
    "1",
    "--mca",
    "oob_tcp_keepalive_probes",
    "2",
];

/// Trains on three machines until one is lost; returns the standard error.
fn struck(machines: &mut Machines, fate: Fate, lost: usize, flags: &[&str]) -> String {
    let trace = tempdir().unwrap();
    let more = ["--link", "mpi", "--timeout", DEADLINE, "--trace", text(&trace), "--steps", "1000000"];
    let at = TINY.iter().position(|&flag| flag == "--steps").unwrap();
    let arguments = [&TINY[..at], &TINY[at + 2..], &more].concat();
    let mut command = mpirun(machines, 1, 3, flags, &arguments);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut stream = child.stderr.take().unwrap();
    let err = std::thread::spawn(move || {
        let mut text = String::new();
        stream.read_to_string(&mut text).map(|_| text).unwrap()
    });
    for _ in 0..5 {
        assert!(out.read_line(&mut String::new()).unwrap() > 0, "the run has ended: {}", err.join().unwrap());
    }
    let rest = std::thread::spawn(move || out.read_to_string(&mut String::new()));
    if fate != Fate::Ended {
        machines.unplug(lost);
    }
    if fate != Fate::Cut {
        machines.end(lost);
    }
    let since = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if since.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("{fate:?} of {lost}: mpirun does not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    rest.join().unwrap().unwrap();
    err.join().unwrap()
}

#[test]
#[ignore = "makes networks: needs root, iproute2 and openssh-server"]
fn a_machine_that_is_cut_off_or_lost_is_named_and_nothing_is_left_on_the_others() {
    let recovery = [KEEPALIVE, &["--enable-recovery"]].concat();
    let cases =
        [(Fate::Cut, 1, &*recovery), (Fate::Dark, 2, &recovery), (Fate::Cut, 2, KEEPALIVE), (Fate::Ended, 1, &[])];
    for_each_at_once(2, &cases, |&(fate, lost, flags)| {
        let mut machines = Machines::start_with_ssh(3);
        let err = struck(&mut machines, fate, lost, flags);
        println!("{fate:?} of {lost}: {err}");
        if flags.contains(&"--enable-recovery") {
            let reported =
                err.lines().filter(|line| line.contains("error: ") && line.contains(&format!("rank {lost}")));
            assert_eq!(reported.count(), 2, "{fate:?} of {lost}: {err}");
        } else {
            // `mpirun` names the machine and ends the ranks before they can print anything.
            assert!(err.contains(&machines.address(lost)), "{fate:?} of {lost}: {err}");
        }
        let on: Vec<usize> = (0..3).filter(|&machine| fate == Fate::Cut || machine != lost).collect();
        assert_eq!(left(&machines, &on), Vec::<String>::new(), "{fate:?} of {lost}: {err}");
    });
}
