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
    pub(crate) communicator: SimpleCommunicator,
    /// Envelopes that are being received, in the order of each rank.
    envelopes: Vec<VecDeque<InFlight>>,
    /// Messages whose envelope has arrived, in the order of each rank.
    messages: Vec<VecDeque<Receiving>>,
    /// A rank's [`Envelope::Recovered`] that waits for the messages before it.
    recoveries: Vec<Option<Bytes>>,
    /// The repeating messages from each rank.
    incoming: Vec<Incoming>,
    /// The repeating messages to each rank.
    outgoing: Vec<Outgoing>,
    /// Ranks that send nothing more here.
    closed: Vec<bool>,
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
        let ranks = communicator.size() as usize;
        Self {
            envelopes: (0..ranks).map(|_| VecDeque::new()).collect(),
            messages: (0..ranks).map(|_| VecDeque::new()).collect(),
            recoveries: vec![None; ranks],
            incoming: (0..ranks).map(|_| Incoming::default()).collect(),
            outgoing: (0..ranks).map(|_| Outgoing::default()).collect(),
            closed: vec![false; ranks],
            communicator,
        }
    }

    /// Starts to send an envelope and a message's tensors. A message that repeats an earlier one is sent under a
    /// number.
    pub(crate) fn send(&mut self, to: usize, envelope: Envelope, mut bodies: Vec<Bytes>, sending: &mut Vec<InFlight>) {
        bodies.retain(|body| !body.is_empty());
        let (mut envelope, mut tag) = (envelope, BODY);
        // Bytes that are not a frame are sent unchanged: the receiver refuses them.
        let frame = if let Envelope::Message(frame) = &envelope { Frame::read(frame).ok() } else { None };
        if let Some(frame) = frame {
            let outgoing = &mut self.outgoing[to];
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
                Noted::Ends(number) => self.end_numbers(to, [number], sending),
                Noted::Whole => {}
            }
        }
        let process = self.communicator.process_at_rank(to as i32);
        sending.push(InFlight::send(&process, ENVELOPE, Bytes::from_elems(envelope.write())));
        sending.extend(bodies.into_iter().map(|body| InFlight::send(&process, tag, body)));
    }

    /// Completes the receives that wait for messages of these numbers.
    fn end_numbers(&mut self, to: usize, numbers: impl IntoIterator<Item = u16>, sending: &mut Vec<InFlight>) {
        let process = self.communicator.process_at_rank(to as i32);
        for number in numbers {
            let transfers = self.outgoing[to].transfers.remove(&number).unwrap_or_default();
            let end = |_| InFlight::send_nothing(&process, REPEATED + Tag::from(number));
            sending.extend((0..transfers).map(end));
        }
    }

    /// Ends all numbers: nothing more is sent.
    pub(crate) fn end_sending(&mut self, sending: &mut Vec<InFlight>) {
        for to in 0..self.outgoing.len() {
            let numbers = self.outgoing[to].repeats.end();
            self.end_numbers(to, numbers, sending);
        }
    }

    /// Records that nothing more comes from a rank.
    pub(crate) fn end_receiving(&mut self, from: usize) {
        self.incoming[from].end();
        self.closed[from] = true;
    }

    /// Returns true if everything that a rank has sent has arrived, and nothing more comes.
    pub(crate) fn is_closed_by(&self, rank: usize) -> bool {
        self.closed[rank] && self.envelopes[rank].is_empty() && self.messages[rank].is_empty()
    }

    /// Starts to receive the tensors of a message.
    pub(crate) fn receive(&mut self, from: usize, frame: &[u8]) -> Result<(), WireError> {
        let process = self.communicator.process_at_rank(from as i32);
        let receiving = self.incoming[from].receive(&process, frame)?;
        self.messages[from].push_back(receiving);
        Ok(())
    }

    /// Starts to receive the envelopes that have arrived. Returns true if anything moved.
    pub(crate) fn probe(&mut self) -> bool {
        let mut busy = false;
        let any = self.communicator.any_process();
        while let Some((message, status)) = any.immediate_matched_probe_with_tag(ENVELOPE) {
            let length = status.count(u8::equivalent_datatype()) as usize;
            let buffer = Bytes::from_elems(vec![0u8; length]);
            self.envelopes[status.source_rank() as usize].push_back(InFlight::matched(message, buffer));
            busy = true;
        }
        self.incoming.iter_mut().fold(busy, |busy, incoming| incoming.clear() || busy)
    }

    /// Returns the next complete envelope or message.
    pub(crate) fn next(&mut self) -> Option<Arrival> {
        for rank in 0..self.envelopes.len() {
            if let Some(envelope) = self.next_envelope(rank) {
                return Some(Arrival::Envelope(rank, envelope));
            }
            if let Some(message) = finish_message(&mut self.messages[rank]) {
                return Some(Arrival::Message(rank, message));
            }
        }
        None
    }

    /// Returns a rank's next envelope, if it is complete and waits for no message before it.
    fn next_envelope(&mut self, from: usize) -> Option<Bytes> {
        let envelope = self.recoveries[from].take().or_else(|| finish_transfer(&mut self.envelopes[from]))?;
        if !self.messages[from].is_empty() && envelope[..] == Envelope::Recovered.write()[..] {
            self.recoveries[from] = Some(envelope);
            return None;
        }
        Some(envelope)
    }

    pub(crate) fn is_receiving(&self) -> bool {
        self.messages.iter().any(|messages| !messages.is_empty())
    }

    /// Returns true if no receive waits any more.
    pub(crate) fn is_over(&self) -> bool {
        self.incoming.iter().all(Incoming::is_over)
    }
}
