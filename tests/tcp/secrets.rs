//! Who may join a job: processes that know its secret; without a secret, processes on this machine.

use crate::rendezvous::{assert_all_connect, connect, dial, secret_place};
use crate::{TIMEOUT, place, port};
use burn_pipeline::link::{Admission, Rendezvous, TcpError};
use pipeline_tests::at_once::for_each_at_once;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

#[test]
fn only_processes_that_know_the_secret_join() {
    let port = port();
    let hosted = |rank| secret_place(rank, 3, port, "known to three");
    let timeout = Duration::from_secs(1);
    std::thread::scope(|scope| {
        let job = |rank| scope.spawn(move || connect(&hosted(rank), TIMEOUT).map(drop));
        let (host, first) = (job(0), job(1));
        for_each_at_once(2, &[secret_place(2, 3, port, "known to none"), place(2, 3, port)], |stranger| {
            let began = Instant::now();
            let error = connect(stranger, timeout).map(drop).unwrap_err();
            assert!(matches!(error, TcpError::Secret { rank: 0, .. }), "{error}");
            assert!(began.elapsed() < 8 * timeout, "{:?}", began.elapsed());
        });
        let last = job(2);
        for rank in [host, first, last] {
            rank.join().unwrap().unwrap();
        }
    });
    // A rank does not accept a rank 0 that lacks the secret either.
    let port = self::port();
    std::thread::scope(|scope| {
        let host = scope.spawn(move || connect(&secret_place(0, 2, port, "one"), timeout).map(drop).unwrap_err());
        let error = connect(&secret_place(1, 2, port, "other"), timeout).map(drop).unwrap_err();
        assert!(matches!(error, TcpError::Secret { rank: 0, .. }), "{error}");
        let error = host.join().unwrap().to_string();
        assert!(
            error.contains("rank(s) [1] did not connect") && error.contains("does not know the job's secret"),
            "{error}"
        );
    });
}

#[test]
fn a_proof_that_was_overheard_opens_nothing() {
    let port = port();
    let place = |rank| secret_place(rank, 2, port, "s");
    // A proxy between a rank and rank 0 forwards and records everything.
    let between = TcpListener::bind("127.0.0.1:0").unwrap();
    let other =
        Rendezvous { address: between.local_addr().map(|at| (at.ip().to_string(), at.port())).unwrap(), ..place(1) };
    std::thread::scope(|scope| {
        let host = scope.spawn(move || connect(&place(0), TIMEOUT).map(drop));
        let rank = scope.spawn(move || connect(&other, TIMEOUT).map(drop));
        let (mut near, _) = between.accept().unwrap();
        let mut far = dial(port);
        let mut heard = [0; 68];
        near.read_exact(&mut heard[..36]).unwrap();
        far.write_all(&heard[..36]).unwrap();
        let mut answer = [0; 36];
        far.read_exact(&mut answer).unwrap();
        near.write_all(&answer).unwrap();
        near.read_exact(&mut heard[36..]).unwrap();
        // The same bytes on another connection fail: rank 0 has chosen other random bytes.
        let mut replayed = dial(port);
        replayed.write_all(&heard).unwrap();
        let mut reply = [0; 68];
        replayed.read_exact(&mut reply).unwrap();
        assert_ne!(reply[..36], answer);
        assert_eq!(reply[36..], [0; 32], "it was accepted as a rank");
        assert_eq!(replayed.read(&mut [0]).unwrap(), 0);
        // Without the proxy, the rank reaches rank 0.
        far.write_all(&heard[36..]).unwrap();
        let (mut up, mut down) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        scope.spawn(move || std::io::copy(&mut up, &mut down));
        scope.spawn(move || std::io::copy(&mut far, &mut near));
        host.join().unwrap().unwrap();
        rank.join().unwrap().unwrap();
    });
}

#[test]
fn a_secret_without_bytes_is_refused_before_anything_listens() {
    let error = connect(&secret_place(0, 2, port(), ""), Duration::from_secs(60)).map(drop).unwrap_err();
    assert_eq!(error, TcpError::EmptySecret);
}

#[test]
fn without_a_secret_nobody_listens_to_other_machines() {
    for rank in [0, 1] {
        for host in ["10.0.0.1", "0.0.0.0", "::"] {
            let place = Rendezvous { address: (host.to_owned(), port()), ..place(rank, 2, 1) };
            let began = Instant::now();
            let error = connect(&place, TIMEOUT).map(drop).unwrap_err();
            assert!(matches!(error, TcpError::NoSecret { .. }), "{error}");
            assert!(error.to_string().contains("BURN_PIPELINE_SECRET"), "{error}");
            assert!(began.elapsed() < TIMEOUT / 2);
        }
    }
    // A job that admits anyone must say so explicitly.
    let port = port();
    let place = |rank| {
        let host = if rank == 0 { "0.0.0.0" } else { "127.0.0.1" };
        Rendezvous { address: (host.to_owned(), port), admission: Admission::Anyone, ..place(rank, 2, port) }
    };
    assert_all_connect((0..2).map(place).collect());
}
