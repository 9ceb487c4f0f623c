//! The conformance suite over TCP, the rendezvous of ranks, and lost ranks in processes.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking and print what they covered")]

#[allow(dead_code, reason = "the tests on threads use all of it")]
#[path = "../runtime/cases.rs"]
mod cases;
mod faults;
mod leaving;
mod machines;
#[path = "../ranks/odd.rs"]
mod odd;
mod packets;
#[path = "../ranks/plain.rs"]
mod plain;
#[path = "../ranks/rates.rs"]
mod rates;
mod rendezvous;
mod secrets;

use burn::optim::SgdConfig;
use burn::tensor::Device;
use burn_pipeline::link::conformance::run_on_threads;
use burn_pipeline::link::{Admission, Launch, Link, Rendezvous, TcpLink, Threads};
use burn_pipeline::schedule::{OneFOneB, Size};
use burn_pipeline::train::Pipeline;
use cases::{Case, Text};
use pipeline_tests::at_once::for_each_at_once;
use pipeline_tests::connections::established;
use pipeline_tests::faulty_link::Fault;
use pipeline_tests::leaving::Leaving;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};
use tempfile::tempdir;

const TIMEOUT: Duration = Duration::from_secs(30);

/// A port that is free now, below the range from which the system assigns ports (from 32768).
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let own = std::process::id() as u16;
    let mut ports = std::iter::repeat_with(|| {
        10_000 + own.wrapping_mul(37).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000
    });
    ports.find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok()).unwrap()
}

fn place(rank: usize, ranks: usize, port: u16) -> Rendezvous {
    Rendezvous { rank, ranks, address: ("127.0.0.1".to_owned(), port), admission: Admission::ThisMachine }
}

#[test]
fn tcp_is_a_link() {
    for_each_at_once(3, &[2, 3, 5], |&ranks| {
        run_on_threads(ranks, || {
            let port = port();
            move |rank| TcpLink::connect(&place(rank, ranks, port), Device::flex(), TIMEOUT).unwrap()
        });
    });
}

#[test]
fn ranks_meet_over_any_other_link() {
    let ranks = 3;
    let threads = Threads::new(ranks);
    std::thread::scope(|scope| {
        for rank in 0..ranks {
            let mut first = threads.link(rank, Device::flex());
            scope.spawn(move || {
                let mut link = TcpLink::by_link(&mut first, Device::flex(), TIMEOUT).unwrap();
                assert_eq!((link.rank(), link.ranks()), (rank, ranks));
                let table = link.all_gather(vec![rank as u8], Instant::now() + TIMEOUT).unwrap();
                assert_eq!(table, [[0], [1], [2]]);
            });
        }
    });
}

#[test]
fn a_rank_alone_needs_nobody() {
    let mut link = TcpLink::connect(&place(0, 1, 1), Device::flex(), TIMEOUT).unwrap();
    assert_eq!(link.all_gather(vec![1], Instant::now() + TIMEOUT).unwrap(), [[1]]);
}

/// The timeout of the processes below.
const DEADLINE: Duration = Duration::from_secs(6);

/// One rank, in a process that the tests below start with torchrun's variables: trains until it is told to end.
#[test]
#[ignore = "a process of the tests below"]
fn one_rank_of_several_processes() {
    let launch = Launch::from_environment().unwrap().unwrap();
    let drawn = faults::of_rank(launch.rank);
    let rendezvous = launch.rendezvous().unwrap();
    let link: Box<dyn Link> = match drawn {
        Some((fault, at)) => Box::new(faults::faulty(&rendezvous, fault, at)),
        None => Box::new(TcpLink::connect(&rendezvous, Device::flex(), TIMEOUT).unwrap()),
    };
    if let Ok(field) = std::env::var("ODD") {
        let field = Some(field.as_str()).filter(|_| launch.rank + 1 == launch.ranks);
        println!("failed: {}", odd::build(link, field).unwrap_err());
        return;
    }
    let other = drawn.is_some_and(|(fault, _)| fault == Fault::OtherPlan);
    let builder = Pipeline::builder()
        .schedule(if other { "GPipe" } else { "1F1B" }, Size::new(launch.ranks, 4))
        .devices(vec![Device::flex()])
        .stages(Text::stage)
        .optimizer(|| SgdConfig::new().init())
        .timeout(DEADLINE);
    let since = Instant::now();
    let mut pipeline = match builder.build_rank(link) {
        Ok(pipeline) => pipeline,
        Err(error) => {
            println!("failed after {:.1} s: {error}", since.elapsed().as_secs_f64());
            return;
        }
    };
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse::<usize>().ok());
    let leaving = std::env::var("LEAVING").ok().filter(|_| number("LEAVES") == Some(launch.rank));
    for step in 0..number("STEPS").unwrap() {
        // When this rank has finished step 4, every other one has finished step 3.
        let named = leaving.as_ref().filter(|_| step == 5).map(|how| Leaving::named(how));
        if let Some(how) = named.or_else(|| drawn.and_then(|(fault, at)| fault.leaves(at, step))) {
            how.leave(pipeline);
            // The process lives on, but no longer serves anybody.
            std::thread::sleep(10 * DEADLINE);
            return;
        }
        let (since, connected) = (Instant::now(), established());
        match pipeline.step(Text::new(4).batch(), 0.1) {
            Ok(report) => {
                println!("connections: {}, new: {}", connected.len(), established().difference(&connected).count());
                println!("step {step} loss {:?}", report.loss);
            }
            Err(error) => {
                println!("failed after {:.1} s: {error}", since.elapsed().as_secs_f64());
                return;
            }
        }
    }
}

#[test]
fn the_whole_model_is_exported_over_connections_as_from_threads() {
    let folder = tempdir().unwrap();
    let ranks = 3;
    let builder = Pipeline::builder()
        .schedule(OneFOneB, Size::new(ranks, 2))
        .devices(vec![Device::flex()])
        .stages(Text::stage)
        .optimizer(|| SgdConfig::new().init());
    builder.clone().build().unwrap().export(folder.path().join("threads")).unwrap();
    let port = port();
    std::thread::scope(|scope| {
        for rank in 0..ranks {
            let (builder, folder) = (builder.clone(), folder.path());
            scope.spawn(move || {
                let link = TcpLink::connect(&place(rank, ranks, port), Device::flex(), TIMEOUT).unwrap();
                let mut pipeline = builder.build_rank(Box::new(link)).unwrap();
                pipeline.export(folder.join("connections")).unwrap();
            });
        }
    });
    let read = |name| std::fs::read(folder.path().join(name)).unwrap();
    assert!(read("threads") == read("connections"), "another file");
}

#[test]
fn rates_by_group_are_those_of_the_plain_loop_whichever_rank_holds_the_group() {
    for ranks in [2, 3] {
        let port = port();
        std::thread::scope(|scope| {
            for rank in 0..ranks {
                let link = move || TcpLink::connect(&place(rank, ranks, port), Device::flex(), TIMEOUT).unwrap();
                scope.spawn(move || rates::by_group(Box::new(link())));
            }
        });
    }
}

#[test]
fn plain_numbers_and_strings_are_those_of_their_microbatch_on_every_rank() {
    for ranks in [2, 4] {
        let port = port();
        std::thread::scope(|scope| {
            for rank in 0..ranks {
                let link = move || TcpLink::connect(&place(rank, ranks, port), Device::flex(), TIMEOUT).unwrap();
                scope.spawn(move || plain::by_microbatch(Box::new(link())));
            }
        });
    }
}

/// The name of the test `one_rank_of_several_processes`.
const RANK: &str = "one_rank_of_several_processes";

fn losses_of_threads(ranks: usize, steps: usize) -> Vec<String> {
    let mut alone = Pipeline::builder()
        .schedule(OneFOneB, Size::new(ranks, 4))
        .devices(vec![Device::flex()])
        .stages(Text::stage)
        .optimizer(|| SgdConfig::new().init())
        .build()
        .unwrap();
    let mut step = |step| format!("step {step} loss {:?}", alone.step(Text::new(4).batch(), 0.1).unwrap().loss);
    (0..steps).map(&mut step).collect()
}

/// Processes that are killed when dropped.
struct Processes(Vec<Child>);

impl Processes {
    fn start(ranks: usize, steps: usize) -> Self {
        Self::start_with(ranks, steps, ("127.0.0.1", port()), |_| Self::program())
    }

    fn program() -> Command {
        Command::new(std::env::current_exe().unwrap())
    }

    /// Starts this program as each rank, with the command from `program`. The rendezvous is an address and a port.
    fn start_with(ranks: usize, steps: usize, (host, port): (&str, u16), program: impl Fn(usize) -> Command) -> Self {
        let start = |rank: usize| {
            let mut command = program(rank);
            command.args(["--exact", RANK, "--ignored", "--nocapture"]);
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
            command.env("MASTER_ADDR", host).env("MASTER_PORT", port.to_string()).env("STEPS", steps.to_string());
            command.env_remove("TORCHELASTIC_USE_AGENT_STORE");
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
        };
        Self((0..ranks).map(start).collect())
    }

    /// Reads each rank's output to its end, and compares it with what threads of this process compute.
    fn assert_losses_of_threads(&mut self, steps: usize) {
        let losses = losses_of_threads(self.0.len(), steps);
        for child in &mut self.0 {
            let mut text = String::new();
            child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
            let reported: Vec<&str> = text.lines().filter(|line| line.starts_with("step ")).collect();
            assert_eq!(reported, losses, "{text}");
            assert!(child.wait().unwrap().success());
        }
    }

    /// Waits until a rank has done some steps, then returns the rest of its output.
    fn after_steps(&mut self, rank: usize) -> BufReader<std::process::ChildStdout> {
        let mut out = BufReader::new(self.0[rank].stdout.take().unwrap());
        let mut said = String::new();
        while !said.lines().next_back().is_some_and(|line| line.starts_with("step 3 ")) {
            assert!(out.read_line(&mut said).unwrap() > 0, "rank {rank} has ended: {said}");
        }
        out
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn processes_have_the_losses_of_threads_bit_for_bit() {
    let (ranks, steps) = (3, 4);
    Processes::start(ranks, steps).assert_losses_of_threads(steps);
}

#[test]
fn a_pipeline_over_tcp_is_connected_before_its_first_step() {
    let ranks = 3;
    for child in &mut Processes::start(ranks, 1).0 {
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        // One connection to each other rank before each step, and no new one after it.
        let printed: Vec<&str> = text.lines().filter(|line| line.starts_with("connections: ")).collect();
        assert_eq!(printed, [format!("connections: {}, new: 0", ranks - 1)], "{text}");
    }
}

#[test]
fn the_process_that_was_started_otherwise_is_named_with_what_it_has_by_every_rank() {
    for (ranks, (field, says)) in [2, 3].into_iter().flat_map(|ranks| odd::FIELDS.map(|field| (ranks, field))) {
        let mut processes = Processes::start_with(ranks, 0, ("127.0.0.1", port()), |_| {
            let mut program = Processes::program();
            program.env("ODD", field);
            program
        });
        let named = format!("rank {} differs from the others in {says}", ranks - 1);
        for (rank, child) in processes.0.iter_mut().enumerate() {
            let mut text = String::new();
            child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
            assert!(text.contains(&named), "rank {rank} of {ranks} does not contain {named}: {text}");
        }
    }
}

#[test]
fn a_killed_process_is_named_at_once_and_a_stopped_one_within_the_deadline() {
    for (signal, ranks, failing, limit) in
        [("-KILL", 3, 1, DEADLINE / 2), ("-KILL", 2, 0, DEADLINE / 2), ("-STOP", 3, 2, DEADLINE * 2)]
    {
        let mut processes = Processes::start(ranks, 1_000_000);
        let mut outs: Vec<_> = (0..ranks).map(|rank| processes.after_steps(rank)).collect();
        let id = processes.0[failing].id().to_string();
        Command::new("kill").args([signal, &id]).status().unwrap();
        let since = Instant::now();
        for (rank, out) in outs.iter_mut().enumerate().filter(|(rank, _)| *rank != failing) {
            let mut text = String::new();
            out.read_to_string(&mut text).unwrap();
            let failed = text.lines().find(|line| line.starts_with("failed")).unwrap_or("no error");
            assert!(failed.contains(&format!("rank {failing}")), "rank {rank}, {signal}: {failed}");
            assert!(since.elapsed() < limit, "rank {rank}, {signal}: {:?}: {failed}", since.elapsed());
        }
    }
}
