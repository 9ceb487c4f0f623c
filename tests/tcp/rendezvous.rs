//! How ranks find each other: who is admitted, who is ignored, where ranks listen.

use crate::{TIMEOUT, place, port};
use burn::tensor::Device;
use burn_pipeline::link::{Admission, Link, Rendezvous, Secret, TcpError, TcpLink};
use pipeline_tests::drawn::count;
use pipeline_tests::random::Random;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The address of the tests, with a secret.
pub(crate) fn secret_place(rank: usize, ranks: usize, port: u16, secret: &str) -> Rendezvous {
    Rendezvous { admission: Admission::Secret(Secret::new(secret)), ..place(rank, ranks, port) }
}

pub(crate) fn connect(place: &Rendezvous, timeout: Duration) -> Result<TcpLink, TcpError> {
    TcpLink::connect(place, Device::flex(), timeout)
}

fn connect_error(rank: usize, ranks: usize, port: u16, timeout: Duration) -> TcpError {
    connect(&place(rank, ranks, port), timeout).map(drop).unwrap_err()
}

/// Asserts that all ranks at these places connect, and gather their numbers.
pub(crate) fn assert_all_connect(places: Vec<Rendezvous>) {
    let ranks = places.len();
    std::thread::scope(|scope| {
        for place in places {
            scope.spawn(move || {
                let mut link = connect(&place, TIMEOUT).unwrap();
                let table = link.all_gather(vec![place.rank as u8], Instant::now() + TIMEOUT).unwrap();
                assert_eq!(table, (0..ranks).map(|rank| vec![rank as u8]).collect::<Vec<_>>());
            });
        }
    });
}

/// A connection to a rank 0 that may not listen yet.
pub(crate) fn dial(port: u16) -> TcpStream {
    let since = Instant::now();
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => return stream,
            Err(error) => assert!(since.elapsed() < TIMEOUT, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn every_rank_hears_who_did_not_come() {
    let (port, timeout) = (port(), Duration::from_secs(1));
    std::thread::scope(|scope| {
        let joins = scope.spawn(move || connect_error(2, 4, port, timeout));
        let silent = scope.spawn(move || dial(port));
        let error = connect_error(0, 4, port, timeout);
        assert!(matches!(&error, TcpError::Missing { missing, .. } if missing == &[1, 3]), "{error}");
        let silent = silent.join().unwrap().local_addr().unwrap();
        assert!(error.to_string().contains(&format!("from {silent}: it has not said who it is")), "{error}");
        let TcpError::Refused(text) = joins.join().unwrap() else { panic!("another error") };
        assert_eq!(text, error.to_string());
    });
    // Nobody is there at all.
    let error = connect_error(1, 2, port, Duration::ZERO);
    assert!(matches!(error, TcpError::Unreachable { rank: 0, .. }), "{error}");
    assert!(matches!(connect_error(2, 2, port, timeout), TcpError::OutOfRange { rank: 2, ranks: 2 }));
}

#[test]
fn processes_that_do_not_fit_are_told_why_and_the_job_starts_without_them() {
    let port = port();
    std::thread::scope(|scope| {
        let job = |rank| scope.spawn(move || connect(&place(rank, 3, port), TIMEOUT));
        let (host, first) = (job(0), job(1));
        // A rank of a larger job, one too many, a second rank 1: rank 0 refuses them and continues.
        for (rank, ranks, says) in [
            (1, 4, "it expects 4 rank(s), and rank 0 expects 3"),
            (3, 4, "it expects 4 rank(s), and rank 0 expects 3"),
            (1, 3, "another process with that rank was here first"),
        ] {
            std::thread::sleep(Duration::from_millis(200));
            let TcpError::Refused(text) = connect_error(rank, ranks, port, TIMEOUT) else { panic!("another error") };
            assert!(text.contains(says), "{text}");
        }
        let last = job(2);
        for rank in [host, first, last] {
            rank.join().unwrap().unwrap();
        }
    });
}

#[test]
fn a_process_that_ended_at_the_rendezvous_makes_room_for_the_next_one() {
    let port = port();
    std::thread::scope(|scope| {
        let host = scope.spawn(move || connect(&place(0, 3, port), TIMEOUT).map(drop));
        // It gives up before rank 2 arrives.
        assert!(matches!(
            connect_error(1, 3, port, Duration::ZERO),
            TcpError::Broken { .. } | TcpError::Unreachable { .. }
        ));
        let [first, second] = [1, 2].map(|rank| scope.spawn(move || connect(&place(rank, 3, port), TIMEOUT).map(drop)));
        for rank in [host, first, second] {
            rank.join().unwrap().unwrap();
        }
    });
}

#[test]
fn silent_slow_and_noisy_connections_neither_end_nor_delay_the_start() {
    let port = port();
    std::thread::scope(|scope| {
        let host = scope.spawn(move || connect(&place(0, 2, port), TIMEOUT).map(drop));
        let mut silent: Vec<TcpStream> = (0..45).map(|_| dial(port)).collect();
        // Another protocol, a stray beginning of ours, one that declares too much, and one that sends a byte now
        // and then.
        for noise in [
            &b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"[..],
            &[b'b'; 36],
            b"bpt3",
            b"bplt\x03\x00\x00\x00\x01\x02\x00",
            &[0xff; 200],
        ] {
            let mut stream = dial(port);
            stream.write_all(noise).unwrap();
            silent.push(stream);
        }
        let mut slow = dial(port);
        let began = Instant::now();
        slow.write_all(b"b").unwrap();
        let joined = connect(&place(1, 2, port), TIMEOUT).map(drop);
        host.join().unwrap().unwrap();
        joined.unwrap();
        assert!(began.elapsed() < TIMEOUT / 2, "it took {:?}", began.elapsed());
    });
}

#[test]
fn no_number_of_silent_connections_delays_the_start() {
    let port = port();
    std::thread::scope(|scope| {
        let host = scope.spawn(move || connect(&place(0, 2, port), TIMEOUT).map(drop));
        // The oldest of them are closed for newer ones. They connect as fast as the listener accepts them.
        let mut silent = Vec::new();
        for _ in 0..7 {
            silent.extend((0..40).map(|_| dial(port)));
            std::thread::sleep(Duration::from_millis(30));
        }
        let began = Instant::now();
        connect(&place(1, 2, port), TIMEOUT).map(drop).unwrap();
        host.join().unwrap().unwrap();
        assert!(began.elapsed() < TIMEOUT / 2, "it took {:?}", began.elapsed());
        drop(silent);
    });
}

/// Forwards `bytes` bytes.
fn pass(from: &mut TcpStream, to: &mut TcpStream, bytes: usize) {
    let mut passed = vec![0; bytes];
    from.read_exact(&mut passed).unwrap();
    to.write_all(&passed).unwrap();
}

#[test]
fn a_rank_whose_introduction_is_cut_off_or_comes_late_joins_all_the_same() {
    let port = port();
    let place = |rank| secret_place(rank, 2, port, "s");
    let between = TcpListener::bind("127.0.0.1:0").unwrap();
    let other =
        Rendezvous { address: between.local_addr().map(|at| (at.ip().to_string(), at.port())).unwrap(), ..place(1) };
    std::thread::scope(|scope| {
        let host = scope.spawn(move || connect(&place(0), TIMEOUT).map(drop));
        let rank = scope.spawn(move || connect(&other, TIMEOUT).map(drop));
        for cut in [true, false] {
            let ((mut near, _), mut far) = (between.accept().unwrap(), dial(port));
            // Random bytes, then proofs, of both ends.
            for bytes in [36, 32] {
                pass(&mut near, &mut far, bytes);
                pass(&mut far, &mut near, bytes);
            }
            if cut {
                continue;
            }
            std::thread::sleep(Duration::from_secs(3));
            let (mut up, mut down) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            scope.spawn(move || std::io::copy(&mut up, &mut down));
            scope.spawn(move || std::io::copy(&mut far, &mut near));
        }
        host.join().unwrap().unwrap();
        rank.join().unwrap().unwrap();
    });
}

/// Random connections that are not from ranks: silent or slow ones, ones that send random bytes or half of a rank's
/// message, ones with another secret, and ones that close at once. Those that stay open do so until the job has
/// started.
fn disturb(port: u16, mut random: Random, started: &AtomicBool) {
    let mut open = Vec::new();
    for _ in 0..random.below(40) {
        std::thread::sleep(Duration::from_millis(random.below(30)));
        // Rank 0 may not listen yet, or no longer.
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { continue };
        let noise: Vec<u8> = (0..random.below(300)).map(|_| random.below(256) as u8).collect();
        let said = match random.below(5) {
            0 => Vec::new(),
            1 => noise,
            2 => [b"bpt3", &noise[..]].concat(),
            3 => vec![b'b'],
            _ => {
                let other = secret_place(1, 2, port, "another secret");
                std::thread::spawn(move || drop(connect(&other, Duration::from_millis(100))));
                continue;
            }
        };
        // The other end may have closed it.
        let _ = stream.write_all(&said);
        if random.below(2) == 0 {
            open.push(stream);
        }
    }
    let since = Instant::now();
    while !started.load(Ordering::Relaxed) && since.elapsed() < TIMEOUT {
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn connections_at_random_moments_of_the_start_are_ignored_over_tcp() {
    let mut random = Random::of_now();
    for _ in 0..count(6) {
        let (port, ranks) = (port(), 2 + random.below(3) as usize);
        let started = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let (random, started) = (random.split(), &started);
                scope.spawn(move || disturb(port, random, started));
            }
            let began = Instant::now();
            assert_all_connect((0..ranks).map(|rank| secret_place(rank, ranks, port, "the job's")).collect());
            started.store(true, Ordering::Relaxed);
            assert!(began.elapsed() < Duration::from_secs(10), "it took {:?}", began.elapsed());
        });
    }
}

#[test]
fn rank_0_listens_at_the_address_that_was_named_and_at_no_other() {
    let port = port();
    // Another loopback address is free while it listens, so it does not listen on all addresses.
    std::thread::scope(|scope| {
        let host = scope.spawn(move || connect_error(0, 2, port, Duration::from_secs(2)));
        drop(dial(port));
        TcpListener::bind(("127.0.0.2", port)).unwrap();
        assert!(matches!(host.join().unwrap(), TcpError::Missing { .. }));
    });
}

#[test]
fn ranks_meet_over_ipv6_and_by_name() {
    let at = |host: &str, port| {
        (0..3).map(|rank| Rendezvous { address: (host.to_owned(), port), ..place(rank, 3, port) }).collect()
    };
    assert_all_connect(at("localhost", port()));
    if TcpListener::bind("[::1]:0").is_err() {
        println!("this machine has no IPv6");
        return;
    }
    assert_all_connect(at("::1", port()));
    assert_all_connect(at("[::1]", port()));
}

#[test]
fn a_taken_port_and_an_address_of_another_machine_are_named() {
    let taken = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = connect_error(0, 2, port, TIMEOUT);
    assert!(matches!(&error, TcpError::Listen { at, .. } if at.1 == port), "{error}");
    assert!(error.to_string().contains("MASTER_PORT"), "{error}");
    let elsewhere = Rendezvous { address: ("192.0.2.7".to_owned(), port), ..secret_place(0, 2, port, "s") };
    let error = connect(&elsewhere, TIMEOUT).map(drop).unwrap_err().to_string();
    assert!(error.contains("192.0.2.7") && error.contains("MASTER_ADDR"), "{error}");
}
