//! Ranks as processes over TCP, including killed ones.

use crate::ranks::{DEADLINE, compare, slowing, train};
use crate::training::{Training, message, model, training};
use burn::tensor::Device;
use burn_pipeline::link::{Launch, TcpLink};
use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::tempdir;

const TIMEOUT: Duration = Duration::from_secs(60);

/// One rank, in a process that the tests below start with torchrun's variables. `ENDLESS` is the folder of an endless
/// training, whose process the test kills.
#[test]
#[ignore = "a process of the tests below"]
fn one_rank_of_several_processes() {
    let launch = Launch::from_environment().unwrap().unwrap();
    let link = Box::new(TcpLink::connect(&launch.rendezvous().unwrap(), Device::flex(), TIMEOUT).unwrap());
    let Ok(folder) = std::env::var("ENDLESS") else { return compare(link) };
    let endless = |_: Training| training(Path::new(&folder)).num_epochs(1_000_000);
    let (_, result) = train(link, ("1F1B", 4), endless, slowing(model()));
    println!("failed: {}", message(&result));
}

/// Processes that are killed when the test ends, however it ends.
struct Processes(Vec<Child>);

impl Processes {
    fn start(ranks: usize, set_up: impl Fn(&mut Command)) -> Self {
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let start = |rank: usize| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "processes::one_rank_of_several_processes", "--ignored", "--nocapture"]);
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
            set_up(&mut command);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        Self((0..ranks).map(start).collect())
    }

    /// A rank's output, and whether it succeeded.
    fn end(&mut self, rank: usize) -> (String, bool) {
        let child = &mut self.0[rank];
        let (mut said, mut errors) = (String::new(), String::new());
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (said + &errors, child.wait().unwrap().success())
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
fn processes_over_tcp_have_the_metrics_and_weights_of_one_device() {
    for ranks in [2, 3] {
        let mut processes = Processes::start(ranks, |_| {});
        for rank in 0..ranks {
            let (said, well) = processes.end(rank);
            assert!(well && said.contains("1 passed"), "rank {rank} of {ranks}: {said}");
        }
    }
}

#[test]
fn a_killed_process_ends_the_trainings_of_all_others_with_an_error_that_names_it() {
    for (ranks, killed) in [(3, 1), (2, 0)] {
        let folder = tempdir().unwrap();
        let mut processes = Processes::start(ranks, |command| _ = command.env("ENDLESS", folder.path()));
        let began = Instant::now();
        while !folder.path().join("train/epoch-2/Loss.log").exists() {
            assert!(began.elapsed() < TIMEOUT, "no training has begun");
            std::thread::sleep(Duration::from_millis(50));
        }
        processes.0[killed].kill().unwrap();
        let since = Instant::now();
        for rank in (0..ranks).filter(|&rank| rank != killed) {
            let (said, _) = processes.end(rank);
            assert!(said.contains("failed: ") && said.contains(&format!("rank {killed}")), "rank {rank}: {said}");
            assert!(since.elapsed() < DEADLINE / 2, "rank {rank}: {:?}", since.elapsed());
        }
    }
}
