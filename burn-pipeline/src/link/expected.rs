//! What messages between two ranks will hold, known from stages' metadata before the first of them goes.
//!
//! Guarantees: both ends of a channel are told the same, between the same messages; what is told is an expectation, and
//! a message of another form arrives as it would have.
//!
//! 1. Each rank lists what it is going to send: to whom, about what, of which form ([`Expected`]).
//! 2. Every rank gets all lists ([`expect_all`]), and goes by the sender's, so that the two ends cannot differ.
//! 3. Links are told ([`Link::expect`]), and all ranks meet: no message comes before its receiver knew of it.

use super::{Frame, Header, Link, LinkError, WireError, gather};
use crate::stage::PayloadSpec;
use std::time::Instant;

/// What the messages of one rank to another about one stage, in one direction, are expected to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// The rank that sends them.
    pub from: usize,
    /// The rank that receives them.
    pub to: usize,
    /// What they are about; the microbatch plays no part.
    pub header: Header,
    /// What they hold.
    pub form: PayloadSpec,
}

impl Expected {
    /// The frame of such a message; `None` where a size or an element type is not known.
    pub fn frame(&self) -> Option<Vec<u8>> {
        Frame::announcing(self.header, &self.form)
    }

    /// The message from one rank to another that this frame announces.
    fn announced(from: usize, to: usize, frame: &[u8]) -> Result<Self, WireError> {
        let frame = Frame::read(frame)?;
        Ok(Self { from, to, header: frame.header(), form: frame.form() })
    }
}

/// Tells the links of all ranks what each is going to send, before any of it goes. All ranks call it together.
///
/// # Errors
/// If another rank failed, or the deadline passed.
pub(crate) fn expect_all(link: &mut dyn Link, own: &[Expected], deadline: Instant) -> Result<(), LinkError> {
    let (me, ranks) = (link.rank(), link.ranks());
    let announced = own.iter().filter_map(|expected| Some((expected.to, expected.frame()?)));
    let lists: Vec<Vec<(usize, Vec<u8>)>> = gather(link, &announced.collect(), deadline)?;
    let mut mine = Vec::new();
    for (from, list) in lists.iter().enumerate() {
        for (to, frame) in list {
            let expected = Expected::announced(from, *to, frame);
            let expected = expected.map_err(|source| LinkError::Wire { rank: me, peer: from, source })?;
            let apart = from != expected.to && expected.to < ranks;
            if apart && [from, expected.to].contains(&me) {
                mine.push(expected);
            }
        }
    }
    link.expect(&mine)?;
    link.barrier(deadline)
}
