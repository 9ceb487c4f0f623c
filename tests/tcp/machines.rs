//! Ranks on several machines over TCP: each has its own network, and cables can be pulled.
//!
//! They need root and Debian's `iproute2`, so they are ignored by default:
//! `cargo test --workspace --test tcp machines -- --ignored`.

use crate::{DEADLINE, Processes, RANK};
use burn::tensor::Device;
use burn_pipeline::link::{Launch, TcpLink};
use pipeline_tests::at_once::for_each_at_once;
use pipeline_tests::machines::Machines;
use std::io::Read;
use std::time::{Duration, Instant};

/// The machines' ports are all free.
const PORT: u16 = 29_500;

/// Starts `ranks` ranks, distributed over the machines in turn.
fn start(machines: &Machines, count: usize, ranks: usize, steps: usize) -> Processes {
    let program = std::env::current_exe().unwrap();
    let host = machines.address(0);
    Processes::start_with(ranks, steps, (&host, PORT), |rank| {
        let mut command = machines.command(rank % count, &program);
        command.env("BURN_PIPELINE_SECRET", "known to these machines alone");
        command
    })
}

#[test]
#[ignore = "makes networks: needs root and iproute2"]
fn ranks_on_several_machines_have_the_losses_of_threads_bit_for_bit() {
    for (count, ranks) in [(2, 2), (2, 4), (3, 3)] {
        let machines = Machines::start(count);
        start(&machines, count, ranks, 4).assert_losses_of_threads(4);
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

#[test]
#[ignore = "makes networks: needs root and iproute2"]
fn a_machine_that_is_cut_off_or_lost_is_named_by_every_other_rank_within_the_deadline() {
    let cases = [(Fate::Cut, 3, 1), (Fate::Cut, 2, 0), (Fate::Dark, 3, 2), (Fate::Ended, 3, 1)];
    for_each_at_once(2, &cases, |&(fate, ranks, lost)| {
        let mut machines = Machines::start(ranks);
        let mut processes = start(&machines, ranks, ranks, 1_000_000);
        let mut outs: Vec<_> = (0..ranks).map(|rank| processes.after_steps(rank)).collect();
        if fate != Fate::Ended {
            machines.unplug(lost);
        }
        if fate != Fate::Cut {
            machines.end(lost);
        }
        let since = Instant::now();
        for (rank, out) in outs.iter_mut().enumerate() {
            let mut text = String::new();
            out.read_to_string(&mut text).unwrap();
            let failed = text.lines().find(|line| line.starts_with("failed")).unwrap_or("no error");
            let reported = format!("{fate:?} of {lost}, rank {rank} of {ranks} after {:?}: {failed}", since.elapsed());
            println!("{reported}");
            match rank == lost {
                // Nobody answers the rank that is cut off.
                true if fate == Fate::Cut => assert!(failed.contains("does not answer"), "{reported}"),
                true => assert_eq!(failed, "no error", "{reported}"),
                false => assert!(failed.contains(&format!("rank {lost}")), "{reported}"),
            }
            let limit = if fate == Fate::Ended { DEADLINE / 2 } else { DEADLINE * 2 };
            assert!(since.elapsed() < limit, "{reported}");
        }
        let left = |machine: &usize| {
            let since = Instant::now();
            // A process ends a little after its last line.
            while !machines.processes(*machine, RANK).is_empty() && since.elapsed() < DEADLINE {
                std::thread::sleep(Duration::from_millis(20));
            }
            machines.processes(*machine, RANK)
        };
        let ends = (0..ranks).filter(|&machine| fate == Fate::Cut || machine != lost);
        assert_eq!(ends.flat_map(|machine| left(&machine)).collect::<Vec<_>>(), Vec::<String>::new());
    });
}

#[test]
#[ignore = "a process of the test below"]
fn a_rank_that_cannot_connect_says_why() {
    let Ok(Some(launch)) = Launch::from_environment() else { return };
    let (began, timeout) = (Instant::now(), Duration::from_secs(3));
    let error = TcpLink::connect(&launch.rendezvous().unwrap(), Device::flex(), timeout).unwrap_err();
    assert!(began.elapsed() < 3 * timeout, "{:?}: {error}", began.elapsed());
    println!("failed: {error}");
}

#[test]
#[ignore = "makes networks: needs root and iproute2"]
fn hosts_that_nobody_looks_up_and_connections_that_cannot_be_are_named_in_time() {
    let machines = Machines::start(2);
    let on = |machine, script: &str| {
        assert!(machines.command(machine, "sh").args(["-ec", script]).status().unwrap().success(), "{script}");
    };
    // A name server that accepts every query and answers none, as behind a firewall.
    on(
        0,
        "ip neigh add 10.77.0.99 lladdr 02:00:00:00:00:99 dev eth0
        printf 'nameserver 10.77.0.99\noptions timeout:30 attempts:5\n' > /run/resolv.conf
        mount --bind /run/resolv.conf /etc/resolv.conf",
    );
    on(0, "ip route add prohibit 10.99.0.0/16");
    // A connection to this port may connect to itself.
    on(1, "echo 29500 29501 > /proc/sys/net/ipv4/ip_local_port_range");
    let forbidden = "rank 0 cannot be reached at 10.99.0.1:29500 (permission denied)";
    let silent = "no address found for the host \"rank0.example.org\" (its look-up has not been answered yet)";
    let itself = "rank 0 cannot be reached at 127.0.0.1:29500 (connection refused)";
    let cases = [
        (0, 0, "rank0.example.org", silent),
        (0, 1, "rank0.example.org", silent),
        (0, 1, "10.99.0.1", forbidden),
        (1, 1, "127.0.0.1", itself),
    ];
    for_each_at_once(4, &cases, |&(machine, rank, host, says)| {
        let mut command = machines.command(machine, std::env::current_exe().unwrap());
        command.args(["--exact", "machines::a_rank_that_cannot_connect_says_why", "--ignored", "--nocapture"]);
        command
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", "2")
            .env("BURN_PIPELINE_SECRET", "known to two machines alone");
        command.env("MASTER_ADDR", host).env("MASTER_PORT", PORT.to_string());
        command.env_remove("TORCHELASTIC_USE_AGENT_STORE");
        let output = command.output().unwrap();
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && out.contains(&format!("failed: {says}")), "rank {rank}, {host}: {output:?}");
    });
}
