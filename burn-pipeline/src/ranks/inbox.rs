//! Messages of a set: received but not yet used, posted, or possibly early.
//!
//! Guarantees: a message is received only if its use is known; a message that arrives before it is used is kept; an
//! order that differs from both rows is an error, as on any link.
//!
//! 1. A message that another member's row sends is *posted*, in the order in which that row sends it.
//! 2. Sums are sent as soon as they are complete, so they may arrive *early*: before their turn, even before this
//!    rank has reached their turn. They are announced as possibly early when the reduction starts.
//! 3. A stage's own exchanges wait for their message at once and post nothing: the message may come after posted and
//!    early ones, and before a posted sum.
//! 4. Over links that cannot probe ([`Link::probe`]) no sum is sent before its turn ([`Inbox::can_look`]), so the
//!    posted order is the order of arrival.

use crate::link::{Activity, Header, Link, LinkError};
use crate::payload::Payload;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Instant;

/// Messages of the other members, by the rank that sends them.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    received: HashMap<(usize, Header), Payload>,
    posted: HashMap<usize, VecDeque<Header>>,
    early: HashSet<(usize, Header)>,
    looked: bool,
}

impl Inbox {
    /// Returns true if the link has shown what has arrived, so that the others may get sums before their turn.
    pub(crate) fn can_look(&self) -> bool {
        self.looked
    }

    /// Posts a message that arrives after those posted before it.
    pub(crate) fn post(&mut self, from: usize, header: Header) {
        self.early.remove(&(from, header));
        if !self.has(from, header) {
            self.posted.entry(from).or_default().push_back(header);
        }
    }

    /// Announces a message that will be posted later and may arrive before that.
    pub(crate) fn allow_early(&mut self, from: usize, header: Header) {
        self.early.insert((from, header));
    }

    /// Returns true if this message was received and not yet used.
    pub(crate) fn has(&self, from: usize, header: Header) -> bool {
        self.received.contains_key(&(from, header))
    }

    fn expects(&self, from: usize, header: Header) -> bool {
        let posted = self.posted.get(&from).is_some_and(|posted| posted.contains(&header));
        posted || self.early.contains(&(from, header))
    }

    fn store(&mut self, from: usize, header: Header, payload: Payload) {
        if let Some(posted) = self.posted.get_mut(&from) {
            posted.retain(|other| *other != header);
        }
        self.early.remove(&(from, header));
        self.received.insert((from, header), payload);
    }

    /// Receives messages that have arrived from these ranks, without waiting. Returns the ranks from which nothing
    /// has arrived. A rank that has sent something for a later use is not among them.
    pub(crate) fn receive_arrived(
        &mut self,
        link: &mut dyn Link,
        from: impl Iterator<Item = usize>,
        deadline: Instant,
    ) -> Result<Vec<usize>, LinkError> {
        let mut silent = Vec::new();
        for rank in from {
            loop {
                let arrived = link.probe(&[rank], Instant::now())?;
                self.looked |= arrived.is_some();
                match arrived {
                    Some((_, header)) if self.expects(rank, header) => {
                        let payload = link.receive(rank, header, deadline)?;
                        self.store(rank, header, payload);
                    }
                    // For example a message of the plan: the row receives it when it needs it.
                    Some(_) => break,
                    None => {
                        silent.push(rank);
                        break;
                    }
                }
            }
        }
        Ok(silent)
    }

    /// Waits for a message and takes it out.
    pub(crate) fn take(
        &mut self,
        link: &mut dyn Link,
        from: usize,
        header: Header,
        deadline: Instant,
    ) -> Result<Payload, LinkError> {
        let began = Instant::now();
        loop {
            if let Some(payload) = self.received.remove(&(from, header)) {
                return Ok(payload);
            }
            // A message that was not posted is received too: the link's error says what arrived instead.
            let next = self.posted.get(&from).and_then(VecDeque::front).copied().unwrap_or(header);
            link.set_activity(Activity::Waiting(next, from));
            // Whatever arrives first is received, since an early sum may come before the posted message.
            let arrived = link.probe(&[from], poll_deadline(deadline))?;
            self.looked |= arrived.is_some();
            let awaited = |came: &Header| *came == header || self.expects(from, *came);
            let next = arrived.map(|(_, came)| came).filter(awaited).unwrap_or(next);
            let payload = link.receive(from, next, deadline).map_err(|error| error.since(began))?;
            self.store(from, next, payload);
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The time at which a wait stops polling [`Link::probe`] and blocks in [`Link::receive`], whose error says what
/// the other rank is doing: after 15/16 of the time to the deadline.
pub(crate) fn poll_deadline(deadline: Instant) -> Instant {
    let now = Instant::now();
    now + deadline.saturating_duration_since(now) / 16 * 15
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::link::{Message, MessageKind, Threads};
    use burn::tensor::Device;
    use burn_pipeline_plan::plan::StageId;
    use std::time::Duration;

    /// Rank 1 sends `sent`; rank 0 posts and announces messages, then awaits them in the given order.
    fn delivered(sent: &[Header], posted: &[Header], early: &[Header], awaited: &[Header]) {
        let (threads, deadline) = (Threads::new(2), Instant::now() + Duration::from_secs(5));
        let [mut link, mut other] = [0, 1].map(|rank| threads.link(rank, Device::flex()));
        for (place, &header) in sent.iter().enumerate() {
            let mut payload = Payload::default();
            payload.push_tag(place);
            other.send(0, Message { header, payload }, deadline).unwrap();
        }
        let mut inbox = Inbox::default();
        posted.iter().for_each(|&header| inbox.post(1, header));
        early.iter().for_each(|&header| inbox.allow_early(1, header));
        for &header in awaited {
            let payload = inbox.take(&mut link, 1, header, deadline).unwrap();
            let place = sent.iter().position(|sent| *sent == header).unwrap();
            let mut expected = Payload::default();
            expected.push_tag(place);
            assert_eq!(format!("{payload:?}"), format!("{expected:?}"), "{header:?}");
        }
    }

    #[test]
    fn a_wait_for_a_slow_rank_is_extended_by_its_whole_length() {
        let (threads, timeout) = (Threads::new(3), Duration::from_millis(320));
        let [mut link, mut other, mut slow] = [0, 1, 2].map(|rank| threads.link(rank, Device::flex()));
        slow.set_activity(Activity::Saving);
        let header = Header::of_stage(MessageKind::ReplicaGradient, StageId::new(0));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(8 * timeout);
                other.send(0, Message { header, payload: Payload::default() }, Instant::now()).unwrap();
            });
            Inbox::default().take(&mut link, 1, header, Instant::now() + timeout).unwrap();
        });
    }

    #[test]
    fn an_exchange_inside_a_stage_comes_before_between_and_after_sums() {
        let of = |kind, stage| Header::of_stage(kind, StageId::new(stage));
        let exchange = of(MessageKind::Member, 1);
        let [gradient, sum] = [MessageKind::ReplicaGradient, MessageKind::ReplicaSum];
        let (gradient, sum) = (of(gradient, 0), of(sum, 0));
        // The exchange comes after a posted message.
        delivered(&[gradient, exchange], &[gradient], &[], &[exchange, gradient]);
        // It comes after an early sum.
        delivered(&[gradient, sum, exchange], &[gradient], &[sum], &[exchange, gradient, sum]);
        // It comes before a sum that this rank had already made, and the other had not.
        delivered(&[exchange, sum], &[sum], &[], &[exchange, sum]);
    }
}
