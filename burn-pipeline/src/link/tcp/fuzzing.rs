//! The entry point of fuzz targets (`--cfg fuzzing`): this rank's end of a connection in each of its states.

use super::connect::{JoinedRank, refusal, table};
use super::handshake::{Hello, Introduction, Welcome, read};
use super::key::Key;
use super::packet::Received;
use super::reader::Reader;
use crate::link::kit::Peers;
use crate::link::rendezvous::{Admission, Secret};
use std::io::Read;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a rank reads while connections are made.
#[derive(Debug, Clone, Copy)]
pub enum State {
    /// The proof of a caller.
    Caller,
    /// The proof of a listener.
    Listener,
    /// A rank's message to rank 0 of 4 ranks.
    Hello,
    /// A rank's message to another rank.
    Introduction,
    /// Rank 0's reply to a rank of 4.
    Welcome,
}

/// Reads what the other end sends in this state. Returns true if it is accepted.
pub fn hear(state: State, stream: &TcpStream) -> bool {
    let key = Key::of(&Admission::Secret(Secret::new("known to the ranks of the job")));
    let deadline = Instant::now() + Duration::from_secs(2);
    let none: [Option<JoinedRank>; 4] = [const { None }; 4];
    match state {
        State::Caller => key.answer(stream, deadline).is_ok(),
        State::Listener => key.call(stream, deadline).is_ok(),
        State::Hello => read::<Hello>(stream, deadline).is_ok_and(|hello| refusal(&hello, &none).is_none()),
        State::Introduction => read::<Introduction>(stream, deadline).is_ok(),
        State::Welcome => read::<Welcome>(stream, deadline).is_ok_and(|welcome| table(welcome, 4).is_ok()),
    }
}

/// Reads packets of rank 1 until the connection ends.
pub fn packets<P: Peers>(peers: Arc<P>, input: impl Read) {
    let inbox = peers.clone();
    let deliver = move |from, received| {
        if let Received::Message(frame, bodies) = received {
            inbox.mailbox().deliver(from, (frame, bodies));
        }
    };
    Reader { peer: 1, peers, sink: Arc::new(deliver) }.run(input);
}
