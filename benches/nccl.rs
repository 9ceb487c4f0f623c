//! A link over NCCL against raw `ncclSend` and `ncclRecv`, and transfers beside computation.
//!
//! `cargo bench --features benches/nccl --bench nccl -- hop|overlap`. It runs itself as two ranks, on two GPUs or both on one; NCCL
//! takes ranks that share a GPU for two machines, so their messages go over sockets, and say nothing of speed.
//!
//! 1. `hop`: a tensor goes to the other rank and comes back, and half of that time counts; raw calls (`nccl/raw.rs`) and the link take
//!    turns. Both wait for the GPU before the clock is read.
//! 2. `overlap`: products of matrices alone, messages alone, and both at once (`nccl/overlap.rs`).
//!
//! Over the stand-in of `tests/nccl`, which has no kernels, `hop` runs too, and measures the stand-in (`QUICK=1`: few times each).

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints and may stop")]

#[path = "nccl/hop.rs"]
mod hop;
#[path = "nccl/overlap.rs"]
mod overlap;
#[path = "nccl/raw.rs"]
mod raw;
#[path = "link/samples.rs"]
mod samples;

use burn::tensor::Device;
use burn_pipeline::link::Launch;
use burn_pipeline_nccl::{NcclLink, NcclOptions, Ordering};
use samples::Samples;
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);
const ROUNDS: usize = 3;

/// What lets two ranks share a GPU, beside a name for each (`NCCL_HOSTID`).
const SHARED_GPU: [(&str, &str); 4] =
    [("NCCL_SOCKET_IFNAME", "lo"), ("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1"), ("NCCL_NVLS_ENABLE", "0")];

/// This rank's end of a new link, and its GPU.
pub(crate) fn link(launch: &Launch, ordering: Ordering) -> (NcclLink, Device) {
    let device = NcclLink::gpu_of(launch).unwrap();
    let options = NcclOptions { ordering, timeout: TIMEOUT, ordered_sums: false };
    (NcclLink::connect(&launch.rendezvous().unwrap(), device.clone(), options).unwrap(), device)
}

/// Runs a role as two processes; gives what rank 0 prints.
fn run(role: &str) -> String {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let shared = raw::gpus() < 2;
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let rank = rank.to_string();
        command.args(["--role", role]).env("RANK", &rank).env("LOCAL_RANK", &rank).env("WORLD_SIZE", "2");
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
        if shared {
            command.envs(SHARED_GPU).env("NCCL_HOSTID", format!("pipeline-{rank}"));
        }
        std::thread::spawn(move || command.output().unwrap())
    };
    let [first, second] = [start(0), start(1)].map(|rank| rank.join().unwrap());
    for output in [&first, &second] {
        assert!(output.status.success(), "{role}: {}", String::from_utf8_lossy(&output.stderr));
    }
    String::from_utf8(first.stdout).unwrap()
}

/// How often a size is measured.
pub(crate) fn count(size: usize) -> usize {
    if std::env::var_os("QUICK").is_some() { 2 } else { samples::repetitions(size) }
}

/// What a rank's process does.
fn play(role: &str) {
    let launch = Launch::from_environment().unwrap().unwrap();
    match role {
        "raw" => raw::hops(&launch),
        "host" => hop::hops(&launch, Ordering::Host, "NCCL link"),
        "context" => hop::hops(&launch, Ordering::Context, "NCCL link, events"),
        "overlap" => overlap::measure(&launch),
        other => panic!("there is no role {other}"),
    }
}

fn hops() {
    let mut samples = Samples::default();
    for _ in 0..ROUNDS {
        for role in ["raw", "host", "context"] {
            samples.read(&run(role));
        }
    }
    println!("one way, two ranks: microseconds, median (10%..90%), and GB/s of the median");
    samples.print();
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(place) = arguments.iter().position(|argument| argument == "--role") {
        return play(&arguments[place + 1]);
    }
    let wanted = |name: &str| arguments.iter().any(|argument| argument == name);
    if raw::gpus() < 2 {
        println!("both ranks share one GPU: these figures say nothing of speed");
    }
    match (wanted("hop"), wanted("overlap")) {
        (false, false) => {
            hops();
            print!("{}", run("overlap"));
        }
        (hop, overlap) => {
            if hop {
                hops();
            }
            if overlap {
                print!("{}", run("overlap"));
            }
        }
    }
}
