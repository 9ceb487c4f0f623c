//! Messages whose letter is here, and memory that waits for messages whose letter is still to come.
//!
//! 1. A whole frame says how long the tensors behind it are; they are received as they come, by one tag for all.
//! 2. Once a stream of messages has a number ([`Repeats`]), receives for the tensors of its next message are posted at
//!    once, by the number's own tag: the transfer can run before the letter was even looked at. The letter then takes
//!    them over as they are, without reading a header, and the ones for the message after it are posted. So each numbered
//!    stream holds the memory of one message.
//!    Where stages' metadata tell the forms before the first message, its receives wait for it too.
//! 3. When a number ends, its sender sends nothing to the receives that wait, and they are let go of.

use crate::in_flight::InFlight;
use crate::repeats::{Noted, Primed, Repeats};
use burn::tensor::Bytes;
use burn_pipeline::link::WireError;
use burn_pipeline::link::kit::{Frame, Repeat};
use mpi::Tag;
use mpi::point_to_point::Source;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

/// The tag of tensors behind a whole frame.
pub(crate) const BODY: Tag = 2;
/// Added to a number: the tag of tensors behind a repetition.
pub(crate) const REPEATED: Tag = 16;

/// How many messages of a link's plan found their receives posted, and how many had to say first how long they are.
#[derive(Debug, Default)]
pub struct ReceiveCounters {
    ahead: AtomicU64,
    by_header: AtomicU64,
}

impl ReceiveCounters {
    /// Messages whose receives were posted before they came.
    pub fn ahead(&self) -> u64 {
        self.ahead.load(Ordering::Relaxed)
    }

    /// Messages whose receives were posted when their header had been read.
    pub fn by_header(&self) -> u64 {
        self.by_header.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, ahead: bool) {
        let place = if ahead { &self.ahead } else { &self.by_header };
        place.fetch_add(1, Ordering::Relaxed);
    }
}

/// A message whose tensors are on their way.
pub(crate) struct Coming {
    frame: Frame,
    bodies: Vec<Body>,
}

/// A tensor's bytes. Those of a tensor without elements need not travel.
enum Body {
    Here(Bytes),
    OnItsWay(InFlight),
}

/// What repeats among the messages of one rank.
#[derive(Default)]
pub(crate) struct Incoming {
    repeats: Repeats,
    waiting: HashMap<u16, Coming>,
    /// Receives that nothing more comes for.
    ended: Vec<InFlight>,
}

impl Incoming {
    /// Starts to receive the tensors of a message, or takes over the receives that wait for it.
    pub(crate) fn expect(&mut self, from: &impl Source, frame: &[u8]) -> Result<Coming, WireError> {
        if let Some(Repeat { number, microbatch }) = Repeat::read(frame)? {
            let unknown = WireError::UnknownRepeat { number };
            let waiting = self.waiting.get_mut(&number).ok_or(unknown)?;
            let next = Coming::post(from, REPEATED + Tag::from(number), waiting.frame.clone());
            let mut coming = std::mem::replace(waiting, next);
            coming.frame = coming.frame.for_microbatch(microbatch);
            return Ok(coming);
        }
        let read = Frame::read(frame)?;
        let coming = Coming::post(from, BODY, read.clone());
        match self.repeats.note(&read) {
            Noted::Opens(number) => {
                self.waiting.insert(number, Coming::post(from, REPEATED + Tag::from(number), read));
            }
            Noted::Ends(number) => self.end_number(number),
            Noted::Repeat(_) | Noted::Whole => {}
        }
        Ok(coming)
    }

    /// Posts receives for the first of the messages that are expected to have this frame.
    pub(crate) fn prime(&mut self, from: &impl Source, frame: Frame) {
        let Primed { ends, opens } = self.repeats.prime(&frame);
        ends.into_iter().for_each(|number| self.end_number(number));
        if let Some(number) = opens {
            self.waiting.insert(number, Coming::post(from, REPEATED + Tag::from(number), frame));
        }
    }

    fn end_number(&mut self, number: u16) {
        let ended = self.waiting.remove(&number);
        self.ended.extend(ended.into_iter().flat_map(Coming::into_transfers));
    }

    /// Nothing more comes from this rank.
    pub(crate) fn end(&mut self) {
        self.ended.extend(self.waiting.drain().flat_map(|(_, coming)| coming.into_transfers()));
    }

    /// Lets go of receives that are over; `true` if there were some.
    pub(crate) fn clear(&mut self) -> bool {
        let before = self.ended.len();
        self.ended = std::mem::take(&mut self.ended).into_iter().filter_map(|ended| ended.finish().err()).collect();
        self.ended.len() < before
    }

    /// Does nothing wait any more?
    pub(crate) fn is_over(&self) -> bool {
        self.ended.is_empty() && self.waiting.is_empty()
    }
}

impl Coming {
    /// Posts receives for the tensors that a frame announces.
    fn post(from: &impl Source, tag: Tag, frame: Frame) -> Self {
        let land = |landing: Bytes| match landing.is_empty() {
            true => Body::Here(landing),
            false => Body::OnItsWay(InFlight::receive(from, tag, landing)),
        };
        let bodies = frame.buffers().into_iter().map(land).collect();
        Self { frame, bodies }
    }

    fn into_transfers(self) -> impl Iterator<Item = InFlight> {
        self.bodies.into_iter().filter_map(|body| match body {
            Body::OnItsWay(transfer) => Some(transfer),
            Body::Here(_) => None,
        })
    }
}

/// The first transfer, if it is complete.
pub(crate) fn finish_front(queue: &mut VecDeque<InFlight>) -> Option<Bytes> {
    match queue.pop_front()?.finish() {
        Ok(bytes) => Some(bytes),
        Err(transfer) => {
            queue.push_front(transfer);
            None
        }
    }
}

/// The first message, if all of it is here.
pub(crate) fn arrived(queue: &mut VecDeque<Coming>) -> Option<(Frame, Vec<Bytes>)> {
    let coming = queue.front_mut()?;
    let finish = |body| match body {
        Body::OnItsWay(transfer) => transfer.finish().map_or_else(Body::OnItsWay, Body::Here),
        here => here,
    };
    coming.bodies = std::mem::take(&mut coming.bodies).into_iter().map(finish).collect();
    if coming.bodies.iter().any(|body| matches!(body, Body::OnItsWay(_))) {
        return None;
    }
    let Coming { frame, bodies } = queue.pop_front()?;
    let here = |body| match body {
        Body::Here(bytes) => Some(bytes),
        Body::OnItsWay(_) => None,
    };
    Some((frame, bodies.into_iter().filter_map(here).collect()))
}
