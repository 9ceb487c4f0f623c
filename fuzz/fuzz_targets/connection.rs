//! Bytes over a connection of the TCP link. The first byte chooses the connection's state: proving the secret at
//! either end; a rank's first message, or rank 0's table of addresses; or packets, whose frames get a right start
//! and checksum. Every connection must end with a reason, nobody may prove a secret by chance, and messages must
//! arrive with their tensors.
#![no_main]
#![cfg(fuzzing)]

use burn::tensor::Device;
use burn_pipeline::link::fuzzing::{State, hear, packets};
use burn_pipeline::link::kit::{Envelope, Frame, Peers};
use libfuzzer_sys::fuzz_target;
use pipeline_fuzz::{frames, recorded};
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

const STATES: [State; 5] = [State::Caller, State::Listener, State::Hello, State::Introduction, State::Welcome];

fuzz_target!(|bytes: &[u8]| {
    let Some((&state, bytes)) = bytes.split_first() else { return };
    match STATES.get(usize::from(state) % (STATES.len() + 1)) {
        Some(&state) => introduce(state, bytes),
        None => talk(bytes.to_vec()),
    }
});

fn introduce(state: State, bytes: &[u8]) {
    let (ours, mut theirs) = UnixStream::pair().expect("sockets can be made");
    theirs.write_all(bytes).expect("a socket holds a short text");
    theirs.shutdown(Shutdown::Write).expect("it is open");
    let accepted = hear(state, &TcpStream::from(OwnedFd::from(ours)));
    assert!(!accepted || !matches!(state, State::Caller | State::Listener), "proved a secret that it does not know");
}

fn talk(mut bytes: Vec<u8>) {
    mend(&mut bytes);
    let peers = recorded::ranks(3);
    packets(peers.clone(), bytes.as_slice());
    let mailbox = peers.mailbox();
    assert!(mailbox.has_closed(1) || mailbox.has_failed(), "it ended without a reason");
    let now = Instant::now();
    while let Ok(Some((from, header))) = mailbox.probe(&[1], now) {
        // A failure that arrived since counts more than earlier messages.
        let Ok(payload) = mailbox.receive(from, header, &Device::flex(), now, &|_| ()) else { break };
        drop(payload);
    }
}

/// Corrects the ends of all frames.
fn mend(mut stream: &mut [u8]) {
    while let Some((&mut [kind, a, b, c, d], rest)) = stream.split_first_chunk_mut() {
        let Some((packet, rest)) = rest.split_at_mut_checked(u32::from_le_bytes([a, b, c, d]) as usize) else { return };
        let (whole, frame) = match (kind, Envelope::read(packet)) {
            (0, Some(Envelope::Message(frame))) => (true, packet.len() - frame.len()),
            (1, _) => (false, 0),
            _ => (false, packet.len()),
        };
        frames::mend(&mut packet[frame..]);
        let behind = Frame::read(&packet[frame..]).map_or(0, |frame| frame.lengths().fold(0, usize::saturating_add));
        stream = if whole { rest.get_mut(behind..).unwrap_or_default() } else { rest };
    }
}
