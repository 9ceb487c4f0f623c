//! Messages whose envelope has arrived, and memory that waits for messages whose envelope has not.
//!
//! 1. A whole frame gives the lengths of its tensors. They are received under one tag for all.
//! 2. Once a stream of messages has a number ([`Repeats`]), receives for the tensors of its next message are posted
//!    at once, under the number's own tag, so the transfer can run before the envelope is even read. The envelope
//!    then takes over these receives, without reading a frame, and receives for the next message are posted. So
//!    each numbered stream holds the memory of one message.
//! 3. When a number ends, its sender completes the waiting receives with empty messages, and they are dropped.

use crate::in_flight::InFlight;
use crate::repeats::{Noted, Repeats};
use burn::tensor::Bytes;
use burn_pipeline::link::WireError;
use burn_pipeline::link::kit::{Frame, Repeat};
use mpi::Tag;
use mpi::point_to_point::Source;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

/// The tag of tensors after a whole frame.
pub(crate) const BODY: Tag = 2;
/// Added to a number, this gives the tag of tensors after a repeat frame.
pub(crate) const REPEATED: Tag = 16;

/// The numbers of a link's messages whose receives were posted before and after they arrived.
#[derive(Debug, Default)]
pub struct ReceiveCounters {
    ahead: AtomicU64,
    after_frame: AtomicU64,
}

impl ReceiveCounters {
    /// Messages whose receives were posted before they arrived.
    pub fn ahead(&self) -> u64 {
        self.ahead.load(Ordering::Relaxed)
    }

    /// Messages whose receives were posted after their frame was read.
    pub fn after_frame(&self) -> u64 {
        self.after_frame.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, ahead: bool) {
        let counter = if ahead { &self.ahead } else { &self.after_frame };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// A message whose tensors are being received.
pub(crate) struct Receiving {
    frame: Frame,
    bodies: Vec<InFlight>,
}

/// The repeating messages of one rank.
#[derive(Default)]
pub(crate) struct Incoming {
    repeats: Repeats,
    /// Receives for the next message of each number.
    waiting: HashMap<u16, Receiving>,
    /// Receives whose messages will not come any more.
    ended: Vec<InFlight>,
}

impl Incoming {
    /// Starts to receive the tensors of a message, or takes over its waiting receives.
    pub(crate) fn receive(&mut self, from: &impl Source, frame: &[u8]) -> Result<Receiving, WireError> {
        if let Some(Repeat { number, microbatch }) = Repeat::read(frame)? {
            let unknown = WireError::UnknownRepeat { number };
            let waiting = self.waiting.get_mut(&number).ok_or(unknown)?;
            let next = Receiving::post(from, REPEATED + Tag::from(number), waiting.frame.clone())?;
            let mut receiving = std::mem::replace(waiting, next);
            receiving.frame = receiving.frame.for_microbatch(microbatch);
            return Ok(receiving);
        }
        let frame = Frame::read(frame)?;
        match self.repeats.note(&frame) {
            Noted::Opens(number) => {
                let waiting = Receiving::post(from, REPEATED + Tag::from(number), frame.clone())?;
                self.waiting.insert(number, waiting);
            }
            Noted::Ends(number) => {
                let ended = self.waiting.remove(&number);
                self.ended.extend(ended.into_iter().flat_map(|receiving| receiving.bodies));
            }
            Noted::Repeat(_) | Noted::Whole => {}
        }
        Receiving::post(from, BODY, frame)
    }

    /// Ends all numbers: nothing more comes from this rank.
    pub(crate) fn end(&mut self) {
        self.ended.extend(self.waiting.drain().flat_map(|(_, receiving)| receiving.bodies));
    }

    /// Drops completed receives of ended numbers. Returns true if there were some.
    pub(crate) fn clear(&mut self) -> bool {
        let before = self.ended.len();
        self.ended.retain_mut(|ended| !ended.is_complete());
        self.ended.len() < before
    }

    /// Returns true if no receive waits any more.
    pub(crate) fn is_over(&self) -> bool {
        self.ended.is_empty() && self.waiting.is_empty()
    }
}

impl Receiving {
    /// Posts receives for the tensors that a frame announces.
    fn post(from: &impl Source, tag: Tag, frame: Frame) -> Result<Self, WireError> {
        let bodies = frame.buffers()?.into_iter().map(|buffer| InFlight::receive(from, tag, buffer)).collect();
        Ok(Self { frame, bodies })
    }
}

/// Takes the first transfer of a queue, if it is complete.
pub(crate) fn finish_transfer(queue: &mut VecDeque<InFlight>) -> Option<Bytes> {
    queue.pop_front_if(InFlight::is_complete)?.finish()
}

/// Takes the first message of a queue, if it is complete.
pub(crate) fn finish_message(queue: &mut VecDeque<Receiving>) -> Option<(Frame, Vec<Bytes>)> {
    let is_complete = |receiving: &mut Receiving| receiving.bodies.iter_mut().all(InFlight::is_complete);
    let Receiving { frame, bodies } = queue.pop_front_if(is_complete)?;
    Some((frame, bodies.into_iter().filter_map(InFlight::finish).collect()))
}
