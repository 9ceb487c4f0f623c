//! Delays messages as a slower network with given [`LinkCosts`] would.
//!
//! Guarantees: a message arrives no sooner than the costs say; messages of one sender keep their order; a sender
//! never waits for the delay, so it computes while its message travels; failures and deadlines are those of the
//! wrapped link.
//!
//! 1. The sender computes when a message is due. Messages to one rank travel one after the other: each occupies the
//!    link for its bytes over the bandwidth and arrives a latency later, as in the simulator
//!    ([`simulate`](crate::simulate)).
//! 2. The due time travels as two tags behind the payload, in seconds and nanoseconds of the system's clock. So all
//!    ranks must share a clock (threads, or processes of one machine), and all ranks must wrap their ends.
//! 3. The receiver takes the message from the wrapped link and waits until it is due, or until another rank fails.
//!    It keeps a message that is not due at the deadline for the next call.
//! 4. Gathers are not delayed. Sums over groups are, because they are made of messages.

use super::error::LinkError;
use super::header::{Header, Message};
use super::link_trait::Link;
use super::wire_error::WireError;
use crate::payload::{Payload, PayloadPart};
use burn_pipeline_plan::cost::{LinkCosts, ProfileError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often a rank that waits for a due time checks for a failure of another rank.
const POLL: Duration = Duration::from_millis(5);

/// One rank's end of a link, with the delays of a slower network.
///
/// A message arrives no sooner than the given costs say. All ranks must share a clock, and all their ends must be
/// delayed.
///
/// [`Builder::delayed`](crate::train::Builder::delayed) wraps the ends of all ranks.
pub struct Delayed {
    link: Box<dyn Link>,
    network: LinkCosts,
    /// When the link to each rank is free again.
    free: Vec<SystemTime>,
    /// A message of each rank that arrived before it was due.
    early: Vec<Option<Arrival>>,
}

/// A message that has arrived, and when it is due.
#[derive(Debug)]
struct Arrival {
    header: Header,
    payload: Payload,
    due: SystemTime,
}

impl std::fmt::Debug for Delayed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Delayed")
            .field("rank", &self.link.rank())
            .field("network", &self.network)
            .finish_non_exhaustive()
    }
}

impl Delayed {
    /// Delays the messages of this end as a network of these costs would.
    ///
    /// # Errors
    /// Returns [`ProfileError`] if a latency or a bandwidth is negative or not a number.
    pub fn new(link: Box<dyn Link>, network: LinkCosts) -> Result<Self, ProfileError> {
        network.check()?;
        let ranks = link.ranks();
        let early = (0..ranks).map(|_| None).collect();
        Ok(Self { link, network, free: vec![UNIX_EPOCH; ranks], early })
    }

    /// Returns when a message that is sent now is due.
    fn due(&mut self, to: usize, bytes: usize) -> SystemTime {
        let link = self.network.link(self.link.rank(), to);
        let now = SystemTime::now();
        let starts = self.free.get(to).map_or(now, |&free| free.max(now));
        let left = later(starts, link.occupied(bytes as f64));
        if let Some(free) = self.free.get_mut(to) {
            *free = left;
        }
        later(left, link.latency)
    }

    /// Returns the next message from a rank: from an earlier wait, or from the wrapped link.
    fn next(&mut self, from: usize, header: Header, deadline: Instant) -> Result<Arrival, LinkError> {
        if let Some(early) = self.early.get_mut(from).and_then(Option::take) {
            return Ok(early);
        }
        let stamped = self.link.receive(from, header, deadline)?;
        let rank = self.link.rank();
        let (payload, due) = without_due(stamped).ok_or(LinkError::Wire {
            rank,
            peer: from,
            source: WireError::Encoding {
                message: "it has no due time; wrap the links of all ranks in `Delayed`".to_owned(),
            },
        })?;
        Ok(Arrival { header, payload, due })
    }

    /// Takes the next message of each of these ranks from the wrapped link, due or not.
    fn take_early(&mut self, from: &[usize], deadline: Instant) -> Result<(), LinkError> {
        for &rank in from {
            if self.early.get(rank).is_some_and(Option::is_none)
                && let Some((_, header)) = self.link.probe(&[rank], Instant::now())?
            {
                self.early[rank] = Some(self.next(rank, header, deadline)?);
            }
        }
        Ok(())
    }

    fn too_late(&self, peer: usize, header: Header, since: Instant) -> LinkError {
        let (rank, seconds) = (self.link.rank(), since.elapsed().as_secs_f64());
        let peer_state = self.link.monitor().activity(peer).to_string();
        LinkError::Deadline { rank, peer, what: header.to_string(), seconds, peer_state }
    }
}

/// Returns `time` plus some seconds, or `time` itself if the sum is beyond the clock.
fn later(time: SystemTime, seconds: f64) -> SystemTime {
    Duration::try_from_secs_f64(seconds).ok().and_then(|wait| time.checked_add(wait)).unwrap_or(time)
}

/// Removes the due time from the end of a payload.
fn without_due(payload: Payload) -> Option<(Payload, SystemTime)> {
    let mut parts: Vec<PayloadPart> = payload.into_parts().collect();
    let (Some(PayloadPart::Tag(nanoseconds)), Some(PayloadPart::Tag(seconds))) = (parts.pop(), parts.pop()) else {
        return None;
    };
    let due = Duration::from_secs(seconds as u64) + Duration::from_nanos(nanoseconds as u64);
    Some((Payload::from_parts(parts), UNIX_EPOCH.checked_add(due)?))
}

impl Link for Delayed {
    crate::forward_link!(link: rank, ranks, monitor, to_device, set_activity);
    crate::forward_link!(link: all_gather, abort, interrupt);

    fn send(&mut self, to: usize, mut message: Message, deadline: Instant) -> Result<(), LinkError> {
        let due = self.due(to, message.payload.bytes());
        let since = due.duration_since(UNIX_EPOCH).unwrap_or_default();
        message.payload.push_tag(since.as_secs() as usize);
        message.payload.push_tag(since.subsec_nanos() as usize);
        self.link.send(to, message, deadline)
    }

    fn receive(&mut self, from: usize, header: Header, deadline: Instant) -> Result<Payload, LinkError> {
        let since = Instant::now();
        let arrived = self.next(from, header, deadline)?;
        // The wait for a slow rank was extended. Its message has the time of a wait to become due.
        let extended = deadline > since && Instant::now() > deadline;
        let deadline = if extended { Instant::now() + (deadline - since) } else { deadline };
        LinkError::check_order(self.link.rank(), from, header, arrived.header)?;
        loop {
            let Ok(left) = arrived.due.duration_since(SystemTime::now()) else { return Ok(arrived.payload) };
            if left.is_zero() {
                return Ok(arrived.payload);
            }
            // Returns an error if another rank has failed.
            self.link.probe(&[], Instant::now())?;
            let timeout = deadline.saturating_duration_since(Instant::now());
            if timeout.is_zero() {
                self.early[from] = Some(arrived);
                return Err(self.too_late(from, header, since));
            }
            std::thread::sleep(left.min(timeout).min(POLL));
        }
    }

    fn recover(&mut self, deadline: Instant) -> Result<(), LinkError> {
        self.early.fill_with(|| None);
        self.link.recover(deadline)
    }

    fn probe(&mut self, from: &[usize], deadline: Instant) -> Result<Option<(usize, Header)>, LinkError> {
        loop {
            self.take_early(from, deadline)?;
            let now = SystemTime::now();
            let early = || from.iter().filter_map(|&rank| Some((rank, self.early.get(rank)?.as_ref()?)));
            if let Some((rank, arrived)) = early().find(|(_, arrived)| arrived.due <= now) {
                return Ok(Some((rank, arrived.header)));
            }
            let due = early().map(|(_, arrived)| arrived.due).min().and_then(|due| due.duration_since(now).ok());
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let until = Instant::now() + left.min(due.unwrap_or(left));
            let open: Vec<usize> =
                from.iter().copied().filter(|&rank| self.early.get(rank).is_some_and(Option::is_none)).collect();
            if self.link.probe(&open, until)?.is_none() && Instant::now() < until {
                // The wrapped link cannot probe.
                return Ok(None);
            }
        }
    }
}
