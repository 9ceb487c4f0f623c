//! A link over NCCL compared with raw `ncclSend` and `ncclRecv`, and transfers concurrent with computation.
//!
//! `cargo bench --features benches/nccl --bench nccl -- [hop] [overlap]`, both if none is named. It runs itself as
//! two ranks, on two GPUs or both on one. NCCL treats ranks that share a GPU as two machines, so their messages go
//! over sockets and say nothing about speed.
//!
//! 1. `hop`: a tensor goes to the other rank and back, and half of that time counts. Raw calls (`nccl/raw.rs`) and
//!    the link alternate. Both wait for the GPU before the clock is read.
//! 2. `overlap`: matmuls alone, messages alone, and both at once (`nccl/overlap.rs`).
//!
//! With the mock libraries of `tests/nccl` it runs too, and measures the mock (`QUICK=1`: few and small).

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
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, ValueEnum};
use samples::Samples;
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);
const ROUNDS: usize = 3;

/// Lets two ranks share a GPU, together with a name for each (`NCCL_HOSTID`).
const SHARED_GPU: [(&str, &str); 4] =
    [("NCCL_SOCKET_IFNAME", "lo"), ("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1"), ("NCCL_NVLS_ENABLE", "0")];

/// This rank's end of a new link, and its GPU.
pub(crate) fn link(launch: &Launch, ordering: Ordering, high_priority: bool) -> (NcclLink, Device) {
    let device = NcclLink::gpu_of(launch).unwrap();
    let options = NcclOptions { ordering, timeout: TIMEOUT, high_priority, ..NcclOptions::default() };
    (NcclLink::connect(&launch.rendezvous().unwrap(), device.clone(), options).unwrap(), device)
}

/// A link over NCCL compared with raw calls, and concurrent with computation.
#[derive(Parser)]
struct Arguments {
    /// What to measure; both if nothing is named.
    parts: Vec<Part>,
    /// The role of this process, one of two ranks.
    #[arg(long, hide = true)]
    role: Option<Role>,
    /// Set by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Part {
    /// A tensor that goes to the other rank and back.
    Hop,
    /// Matmuls, messages, and both at once.
    Overlap,
}

/// The roles of the two processes.
#[derive(Clone, Copy, PartialEq, Debug, ValueEnum)]
enum Role {
    Raw,
    Host,
    Device,
    Overlap,
}

/// Runs a role as two processes; returns rank 0's output.
fn run(role: Role) -> String {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let shared = raw::gpus() < 2;
    let name = role.to_possible_value().unwrap();
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let rank = rank.to_string();
        command.args(["--role", name.get_name()]).env("RANK", &rank).env("LOCAL_RANK", &rank).env("WORLD_SIZE", "2");
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
        if shared {
            command.envs(SHARED_GPU).env("NCCL_HOSTID", format!("pipeline-{rank}"));
        }
        std::thread::spawn(move || command.output().unwrap())
    };
    let [first, second] = [start(0), start(1)].map(|rank| rank.join().unwrap());
    for output in [&first, &second] {
        assert!(output.status.success(), "{role:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    String::from_utf8(first.stdout).unwrap()
}

/// The number of repetitions of a size.
pub(crate) fn count(size: usize) -> usize {
    if std::env::var_os("QUICK").is_some() { 2 } else { samples::repetitions(size) }
}

/// Runs a role as one of the ranks.
fn play(role: Role) {
    let launch = Launch::from_environment().unwrap().unwrap();
    match role {
        Role::Raw => raw::hops(&launch),
        Role::Host => hop::hops(&launch, Ordering::Host, "NCCL link"),
        Role::Device => hop::hops(&launch, Ordering::Device, "NCCL link, on the device"),
        Role::Overlap => overlap::measure(&launch),
    }
}

fn hops() {
    let mut samples = Samples::default();
    for _ in 0..ROUNDS {
        for role in [Role::Raw, Role::Host, Role::Device] {
            samples.read(&run(role));
        }
    }
    println!("one way, two ranks: microseconds, median (10%..90%), and GB/s of the median");
    samples.print();
}

fn main() {
    let arguments = Arguments::parse();
    let gpus = raw::gpus();
    if gpus == 0 {
        let none = "CUDA's driver finds no GPU; run this where there is one, or with the mock of `tests/nccl`";
        Arguments::command().error(ErrorKind::Io, none).exit();
    }
    if let Some(role) = arguments.role {
        return play(role);
    }
    let wanted = |part| arguments.parts.is_empty() || arguments.parts.contains(&part);
    if gpus < 2 {
        println!("both ranks share one GPU: these figures say nothing about speed");
    }
    if wanted(Part::Hop) {
        hops();
    }
    if wanted(Part::Overlap) {
        print!("{}", run(Role::Overlap));
    }
}
