//! Ranks in processes over TCP, one of which fails at some point: every other one names it, in time.

use crate::{DEADLINE, Processes, TIMEOUT, place, port};
use burn::tensor::Device;
use burn_pipeline::link::kit::{Endpoint, Mailbox, Mesh, Received};
use burn_pipeline::link::{Activity, Header, Link, LinkError, Message, MessageKind, Rendezvous, TcpLink};
use pipeline_tests::at_once::for_each_at_once;
use pipeline_tests::drawn::{Drawn, faults};
use pipeline_tests::faulty_link::{Fault, Faulty, spoilt};
use std::io::Read;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// The time limit of a run, including the start of its processes.
const LIMIT: Duration = Duration::from_secs(90);

/// This rank's fault, and the use of its link at which it occurs.
pub(crate) fn of_rank(rank: usize) -> Option<(Fault, usize)> {
    let said = |name: &str| std::env::var(name).ok();
    let number = |name: &str| said(name)?.parse::<usize>().ok();
    Some((Fault::named(&said("FAULT")?), number("AT")?)).filter(|_| number("FAILING") == Some(rank))
}

/// A TCP link whose rank fails. It uses the transport kit, which can send any bytes as a message.
pub(crate) fn faulty(rendezvous: &Rendezvous, fault: Fault, at: usize) -> Faulty<Endpoint<Mesh>> {
    let mailbox = Arc::new(Mailbox::new(rendezvous.rank, rendezvous.ranks));
    let inbox = mailbox.clone();
    let sink = move |from, received| {
        if let Received::Message(frame, bodies) = received {
            inbox.deliver(from, (frame, bodies));
        }
    };
    let connections = Mesh::connect_at(rendezvous, TIMEOUT).unwrap();
    let link = Endpoint::new(Mesh::start(connections, mailbox, sink).unwrap(), Device::flex());
    Faulty { link, fault, left: at, late: 2 * DEADLINE, released: Default::default(), spoil }
}

fn spoil(link: &mut Endpoint<Mesh>, fault: Fault, to: usize, message: Message, _: Instant) -> Result<(), LinkError> {
    link.send_packed(to, spoilt(fault, message))
}

/// What errors say about the failing rank.
fn says(fault: Fault, failing: usize) -> Vec<String> {
    match fault {
        Fault::OtherPlan => vec![format!("rank {failing} differs from the others in the plan: it has GPipe #")],
        Fault::Leave(leaving) => vec![format!("rank {failing}"), leaving.says().to_owned()],
        _ => vec![format!("rank {failing}")],
    }
}

/// Runs the processes; every one but the failing one must name it, in time.
fn assert_named(drawn: Drawn) {
    println!("{drawn}");
    let mut processes = Processes::start_with(drawn.ranks, 20, ("127.0.0.1", port()), |_| {
        let mut program = Processes::program();
        program.env("FAULT", format!("{:?}", drawn.fault));
        program.env("AT", drawn.at.to_string()).env("FAILING", drawn.failing.to_string());
        program
    });
    for rank in (0..drawn.ranks).filter(|&rank| rank != drawn.failing) {
        let mut out = processes.0[rank].stdout.take().unwrap();
        let (read, reading) = channel();
        std::thread::spawn(move || {
            let mut text = String::new();
            out.read_to_string(&mut text).unwrap();
            // The test may have given up.
            let _ = read.send(text);
        });
        let text = reading.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("{drawn}: rank {rank} does not end"));
        let failed = text.lines().find_map(|line| line.strip_prefix("failed after "));
        let (seconds, error) = failed.and_then(|failed| failed.split_once(" s: ")).unwrap_or_else(|| {
            panic!("{drawn}: rank {rank} got no error: {text}");
        });
        for words in says(drawn.fault, drawn.failing) {
            assert!(error.contains(&words), "{drawn}: rank {rank}: {error} does not contain {words}");
        }
        let seconds = seconds.parse::<f64>().unwrap();
        assert!(seconds < 2.0 * DEADLINE.as_secs_f64(), "{drawn}: rank {rank} took {seconds} s: {error}");
    }
}

/// Most of these runs wait for the timeout.
#[test]
fn faults_at_random_points_are_named_over_tcp() {
    for_each_at_once(3, &faults(&Fault::ALL, 4), |&drawn| assert_named(drawn));
}

/// Rank 2's machine loses power while all export: its connections stay open, and it does not answer.
#[test]
fn ranks_that_all_wait_in_the_middle_of_slow_work_name_the_one_that_is_lost() {
    let (port, wait) = (port(), Duration::from_secs(1));
    std::thread::scope(|scope| {
        let lost = scope.spawn(move || Mesh::connect_at(&place(2, 3, port), TIMEOUT).unwrap());
        let alive = [0, 1].map(|rank| {
            scope.spawn(move || {
                let mut link = TcpLink::connect(&place(rank, 3, port), Device::flex(), TIMEOUT).unwrap();
                link.set_activity(Activity::Saving);
                let (began, header) = (Instant::now(), Header::of(MessageKind::Tensors { index: 0 }));
                let waited = match rank {
                    0 => link.receive(2, header, began + wait).map(drop),
                    _ => link.barrier(began + wait),
                };
                (waited.unwrap_err().to_string(), began.elapsed(), link)
            })
        });
        let open = lost.join().unwrap();
        // No end is dropped before all have given up.
        for (error, took, _) in alive.map(|rank| rank.join().unwrap()) {
            assert!(error.contains("rank 2") && error.contains("does not answer"), "{error}");
            assert!(took < 4 * wait, "{took:?}: {error}");
        }
        drop(open);
    });
}
