//! Tells all links which messages ranks will send, before the first of them.
//!
//! Guarantees: both ends of a channel get the same expectations, in the same order, between the same messages. A
//! message that differs from its expectation still arrives.
//!
//! 1. Each rank lists what it will send ([`ExpectedMessage`]), from the metadata of its stages.
//! 2. Every rank gets all lists and uses the sender's, so the two ends cannot differ.
//! 3. Each link gets its part ([`Link::expect`]), then a barrier: no message arrives before its receiver expects it.

use super::error::LinkError;
use super::expected::ExpectedMessage;
use super::gather::gather;
use super::kit::frame::Frame;
use super::link_trait::Link;
use super::wire_error::WireError;
use std::time::Instant;

/// Exchanges what each rank will send, and tells the links. All ranks call it together.
///
/// # Errors
/// Returns [`LinkError`] if another rank failed, or the deadline passed.
pub(crate) fn expect_all(link: &mut dyn Link, own: &[ExpectedMessage], deadline: Instant) -> Result<(), LinkError> {
    let (me, ranks) = (link.rank(), link.ranks());
    let wire = |peer| move |source: WireError| LinkError::Wire { rank: me, peer, source };
    let mut frames: Vec<(usize, Vec<u8>)> = Vec::new();
    for message in own {
        if let Some(frame) = message.frame() {
            frames.push((message.to, frame.write().map_err(wire(me))?));
        }
    }
    let mut mine = Vec::new();
    for (from, list) in gather(link, &frames, deadline)?.into_iter().enumerate() {
        for (to, frame) in list {
            let frame = Frame::read(&frame).map_err(wire(from))?;
            if from != to && to < ranks && [from, to].contains(&me) {
                mine.push(ExpectedMessage { from, to, header: frame.header(), spec: frame.spec() });
            }
        }
    }
    link.expect(&mine)?;
    link.barrier(deadline)
}
