//! The communicator of a link, and the envelopes and tensors in flight on it, in both directions.
//!
//! A rank that recovers from a failed call says so in an envelope. That envelope, and all that follow it, wait until
//! the tensors of the messages before it have arrived: so the receiver drops these messages, and no later one.

use crate::in_flight::{InFlight, pieces};
use crate::incoming::{BODY, Incoming, REPEATED, Receiving, finish_message, finish_transfer};
use crate::repeats::{Noted, Repeats};
use burn::tensor::Bytes;
use burn_pipeline::link::WireError;
use burn_pipeline::link::kit::{Envelope, Frame, Repeat};
use mpi::Tag;
use mpi::datatype::Equivalence;
use mpi::point_to_point::Source;
use mpi::topology::{Communicator, SimpleCommunicator};
use std::collections::{HashMap, VecDeque};

const ENVELOPE: Tag = 1;

/// A link's communicator, and its messages in flight.
pub(crate) struct Lane {
    communicator: SimpleCommunicator,
    /// By rank.
    peers: Vec<Peer>,
    sending: Vec<InFlight>,
}

/// What is in flight from a rank, and the repeating messages from and to it.
#[derive(Default)]
struct Peer {
    /// Envelopes that are being received, in order.
    envelopes: VecDeque<InFlight>,
    /// Messages whose envelope has arrived, in order.
    messages: VecDeque<Receiving>,
    /// An [`Envelope::Recovered`] that waits for the messages before it.
    recovery: Option<Bytes>,
    incoming: Incoming,
    outgoing: Outgoing,
    /// True if the rank sends nothing more.
    closed: bool,
}

/// The repeating messages to one rank.
#[derive(Default)]
struct Outgoing {
    repeats: Repeats,
    /// The number of transfers of a message of each number.
    transfers: HashMap<u16, usize>,
}

/// An arrival from a rank of the link.
pub(crate) enum Arrival {
    Envelope(usize, Bytes),
    Message(usize, (Frame, Vec<Bytes>)),
}

impl Lane {
    pub(crate) fn new(communicator: SimpleCommunicator) -> Self {
        let peers = (0..communicator.size()).map(|_| Peer::default()).collect();
        Self { communicator, peers, sending: Vec::new() }
    }

    /// Starts to send an envelope and a message's tensors. A message that repeats an earlier one is sent under a
    /// number.
    pub(crate) fn send(&mut self, to: usize, envelope: Envelope, mut bodies: Vec<Bytes>) {
        bodies.retain(|body| !body.is_empty());
        let (mut envelope, mut tag) = (envelope, BODY);
        // Bytes that are not a frame are sent unchanged: the receiver refuses them.
        let frame = if let Envelope::Message(frame) = &envelope { Frame::read(frame).ok() } else { None };
        if let Some(frame) = frame {
            let outgoing = &mut self.peers[to].outgoing;
            match outgoing.repeats.note(&frame) {
                Noted::Repeat(number) => {
                    if let Ok(short) = (Repeat { number, microbatch: frame.header().microbatch }).write() {
                        (envelope, tag) = (Envelope::Message(short), REPEATED + Tag::from(number));
                    }
                }
                Noted::Opens(number) => {
                    let transfers = bodies.iter().map(|body| pieces(body.len())).sum();
                    outgoing.transfers.insert(number, transfers);
                }
                Noted::Ends(number) => self.end_numbers(to, [number]),
                Noted::Whole => {}
            }
        }
        let process = self.communicator.process_at_rank(to as i32);
        self.sending.push(InFlight::send(&process, ENVELOPE, Bytes::from_elems(envelope.write())));
        self.sending.extend(bodies.into_iter().map(|body| InFlight::send(&process, tag, body)));
    }

    /// Completes the receives that wait for messages of these numbers.
    fn end_numbers(&mut self, to: usize, numbers: impl IntoIterator<Item = u16>) {
        let process = self.communicator.process_at_rank(to as i32);
        for number in numbers {
            let transfers = self.peers[to].outgoing.transfers.remove(&number).unwrap_or_default();
            let end = |_| InFlight::send_nothing(&process, REPEATED + Tag::from(number));
            self.sending.extend((0..transfers).map(end));
        }
    }

    /// Ends all numbers: nothing more is sent.
    pub(crate) fn end_sending(&mut self) {
        for to in 0..self.peers.len() {
            let numbers = self.peers[to].outgoing.repeats.end();
            self.end_numbers(to, numbers);
        }
    }

    /// Drops what was sent. Returns true if there was something.
    pub(crate) fn clear_sent(&mut self) -> bool {
        let before = self.sending.len();
        self.sending.retain_mut(|transfer| !transfer.is_complete());
        self.sending.len() < before
    }

    /// Records that nothing more comes from a rank.
    pub(crate) fn end_receiving(&mut self, from: usize) {
        self.peers[from].incoming.end();
        self.peers[from].closed = true;
    }

    /// Returns true if everything that a rank has sent has arrived, and nothing more comes.
    pub(crate) fn is_closed_by(&self, rank: usize) -> bool {
        let peer = &self.peers[rank];
        peer.closed && peer.envelopes.is_empty() && peer.messages.is_empty()
    }

    /// Starts to receive the tensors of a message.
    pub(crate) fn receive(&mut self, from: usize, frame: &[u8]) -> Result<(), WireError> {
        let process = self.communicator.process_at_rank(from as i32);
        let receiving = self.peers[from].incoming.receive(&process, frame)?;
        self.peers[from].messages.push_back(receiving);
        Ok(())
    }

    /// Starts to receive the envelopes that have arrived. Returns true if anything moved.
    pub(crate) fn probe(&mut self) -> bool {
        let mut busy = false;
        let any = self.communicator.any_process();
        while let Some((message, status)) = any.immediate_matched_probe_with_tag(ENVELOPE) {
            let length = status.count(u8::equivalent_datatype()) as usize;
            let buffer = Bytes::from_elems(vec![0u8; length]);
            self.peers[status.source_rank() as usize].envelopes.push_back(InFlight::matched(message, buffer));
            busy = true;
        }
        self.peers.iter_mut().fold(busy, |busy, peer| peer.incoming.clear() || busy)
    }

    /// Returns the next complete envelope or message.
    pub(crate) fn next(&mut self) -> Option<Arrival> {
        for (rank, peer) in self.peers.iter_mut().enumerate() {
            if let Some(envelope) = peer.next_envelope() {
                return Some(Arrival::Envelope(rank, envelope));
            }
            if let Some(message) = finish_message(&mut peer.messages) {
                return Some(Arrival::Message(rank, message));
            }
        }
        None
    }

    /// Returns true if something is being sent or received.
    pub(crate) fn is_busy(&self) -> bool {
        !self.sending.is_empty() || self.peers.iter().any(|peer| !peer.messages.is_empty())
    }

    /// Returns true if everything was sent, and no receive waits any more.
    pub(crate) fn is_over(&self) -> bool {
        self.sending.is_empty() && self.peers.iter().all(|peer| peer.incoming.is_over())
    }
}

impl Peer {
    /// Returns the next envelope, if it is complete and waits for no message before it.
    fn next_envelope(&mut self) -> Option<Bytes> {
        let envelope = self.recovery.take().or_else(|| finish_transfer(&mut self.envelopes))?;
        if !self.messages.is_empty() && envelope[..] == Envelope::Recovered.write()[..] {
            self.recovery = Some(envelope);
            return None;
        }
        Some(envelope)
    }
}
