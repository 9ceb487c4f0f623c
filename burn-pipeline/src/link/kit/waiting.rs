//! Waiting at a mailbox.
//!
//! Guarantees: a wait ends at its deadline, which moves while some rank reports slow work (`moving_deadline.rs`),
//! or at once if a failure is known or the awaited rank has closed the link. Before a wait fails, it asks every
//! rank what it is doing, so the error distinguishes a busy rank from a dead one.
//!
//! 1. A wait that has used half of its time asks all ranks, once.
//! 2. At the deadline, if a rank has answered that it builds, reads or writes, the wait is extended and logs an event;
//!    in a wait for all ranks to make the same call, also if a rank has not made it yet. A rank whose own wait has
//!    lasted too long does not answer so.
//! 3. Otherwise the error follows the answers: what the peer is doing, which rank that one waits for, and so on;
//!    then all ranks that have not answered.

use super::mailbox::{Contents, Delivery, Mailbox};
use crate::link::error::{AGREEMENT, LinkError};
use crate::link::header::Header;
use crate::payload::Payload;
use burn::tensor::Device;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The state of a rank that has not answered.
const GONE: &str = "does not answer (killed, stopped, or its machine is lost)";

/// What a wait is for.
pub(crate) struct Awaited<'a> {
    /// The awaited rank.
    pub(super) peer: &'a dyn Fn(&Contents) -> usize,
    /// What is to arrive, for the error.
    pub(super) what: &'a dyn Fn() -> String,
    /// Sends a question with this number to all other ranks.
    pub(super) ask: &'a dyn Fn(u64),
    /// How long messages may still arrive after their sender has closed the link: zero, unless messages travel
    /// beside the envelopes.
    pub(super) late: Duration,
}

impl Mailbox {
    /// Waits until `take` returns something.
    ///
    /// # Errors
    /// Returns the first failure, or an error if the awaited rank has left, or the deadline passes.
    pub(super) fn wait<T>(
        &self,
        deadline: Instant,
        awaited: &Awaited<'_>,
        mut take: impl FnMut(&mut Contents) -> Option<T>,
    ) -> Result<T, LinkError> {
        let since = Instant::now();
        let mut moving = self.doing.wait(deadline);
        let half = deadline.saturating_duration_since(since) / 2;
        let (mut ask_at, mut asked, mut left_at) = (since + half, false, None);
        let mut contents = self.contents();
        self.waiting.store(true, Ordering::Relaxed);
        let result = loop {
            if let Some(taken) = take(&mut contents) {
                break Ok(taken);
            }
            if let Err(error) = contents.refuse_interrupted(self.rank) {
                break Err(error);
            }
            let now = Instant::now();
            let peer = (awaited.peer)(&contents);
            if contents.closed.get(peer) == Some(&true) && now >= *left_at.get_or_insert(now) + awaited.late {
                break Err(LinkError::Left { rank: self.rank, peer, what: (awaited.what)() });
            }
            if now >= moving.deadline {
                if !self.waits_on_for(&contents, awaited) || !moving.prolong() {
                    break Err(self.deadline_passed(&contents, awaited, since, asked));
                }
                (ask_at, asked) = (now + moving.period / 2, false);
            }
            if now >= ask_at && !asked {
                asked = true;
                contents.question += 1;
                contents.answers = vec![None; self.ranks];
                (awaited.ask)(contents.question);
            }
            let until = if asked { moving.deadline } else { ask_at };
            let until = left_at.map_or(until, |left_at| until.min(left_at + awaited.late));
            let left = until.saturating_duration_since(now);
            self.changed.wait_for(&mut contents, left);
        };
        self.waiting.store(false, Ordering::Relaxed);
        result
    }

    /// Waits until the next message of one of these ranks has arrived; `None` when the deadline passes, or at once
    /// when one of them has left.
    ///
    /// # Errors
    /// Returns the first failure.
    pub fn probe(&self, from: &[usize], deadline: Instant) -> Result<Option<(usize, Header)>, LinkError> {
        let since = Instant::now();
        let mut contents = self.contents();
        loop {
            let next = |&rank: &usize| contents.inbox.get(rank)?.front().map(|(frame, _)| (rank, frame.header()));
            if let Some(next) = from.iter().find_map(next) {
                return Ok(Some(next));
            }
            contents.refuse_interrupted(self.rank)?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || from.iter().any(|&rank| contents.closed.get(rank) == Some(&true)) {
                if deadline > since {
                    self.doing.found_nothing(since);
                }
                return Ok(None);
            }
            self.waiting.store(true, Ordering::Relaxed);
            self.changed.wait_for(&mut contents, left);
            self.waiting.store(false, Ordering::Relaxed);
        }
    }

    /// Waits for the next message from a rank; its tensors are put on `device`.
    ///
    /// # Errors
    /// Returns the first failure, or an error if the rank has left, the deadline passes, or the message has another
    /// header or cannot be read.
    pub fn receive(
        &self,
        from: usize,
        header: Header,
        device: &Device,
        deadline: Instant,
        ask: &dyn Fn(u64),
    ) -> Result<Payload, LinkError> {
        let from = self.known(from)?;
        let awaited = Awaited { peer: &|_| from, what: &|| header.to_string(), ask, late: Duration::ZERO };
        let (frame, bodies): Delivery = self.wait(deadline, &awaited, |contents| contents.inbox[from].pop_front())?;
        LinkError::check_order(self.rank, from, header, frame.header())?;
        let message = frame.message(bodies, device);
        Ok(message.map_err(|source| LinkError::Wire { rank: self.rank, peer: from, source })?.payload)
    }

    /// Waits for the bytes of all ranks in a gather. This rank's bytes are `own`, and were already sent to all
    /// other ranks.
    ///
    /// # Errors
    /// Returns the first failure, or an error if a rank has left without its part, or the deadline passes.
    pub fn gather(
        &self,
        round: u64,
        own: Vec<u8>,
        deadline: Instant,
        ask: &dyn Fn(u64),
    ) -> Result<Vec<Vec<u8>>, LinkError> {
        self.contents().put_gather(round, self.rank, own);
        // Report a rank that has left before one that may still come.
        let missing = |contents: &Contents| {
            let Some(rows) = contents.gather(round) else { return self.rank };
            let missing = || (0..rows.len()).filter(|&rank| rows[rank].is_none());
            missing().find(|&rank| contents.closed[rank]).or(missing().next()).unwrap_or(self.rank)
        };
        let what = || "its part of a gather".to_owned();
        let awaited = Awaited { peer: &missing, what: &what, ask, late: Duration::ZERO };
        self.wait(deadline, &awaited, |contents| contents.end_gather(round))
    }

    /// Waits until all ranks have begun to recover from an interruption. This rank has, and has told the others.
    ///
    /// # Errors
    /// Returns the first failure that ended the link, or an error if a rank has left, or the deadline passes.
    pub(super) fn recover(&self, deadline: Instant, ask: &dyn Fn(u64)) -> Result<(), LinkError> {
        let peer = |contents: &Contents| contents.not_recovering().unwrap_or(self.rank);
        let awaited = Awaited { peer: &peer, what: &|| AGREEMENT.to_owned(), ask, late: Duration::ZERO };
        self.wait(deadline, &awaited, |contents| contents.end_recovery().then_some(()))
    }

    /// Returns true if some rank's last answer justifies a longer wait, and logs an event.
    fn waits_on_for(&self, contents: &Contents, awaited: &Awaited<'_>) -> bool {
        let own = self.own_activity();
        let mut answers =
            contents.answers.iter().enumerate().filter_map(|(rank, answer)| Some((rank, answer.as_ref()?)));
        let Some((other, answer)) = answers.find(|(_, answer)| own.waits_on_for(answer.pace)) else { return false };
        let (rank, what, does) = (self.rank, (awaited.what)(), answer.activity.as_str());
        tracing::warn!(rank, awaited = what, other, does, "a rank waits on for one that is slow");
        // This counts as progress, so this rank does not seem to hang.
        self.activities.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn deadline_passed(&self, contents: &Contents, awaited: &Awaited<'_>, since: Instant, asked: bool) -> LinkError {
        let peer = (awaited.peer)(contents);
        let peer_state = if asked { self.states_from(contents, peer) } else { "had no time to answer".to_owned() };
        let (seconds, what) = (since.elapsed().as_secs_f64(), (awaited.what)());
        LinkError::Deadline { rank: self.rank, peer, what, seconds, peer_state }
    }

    /// What a rank is doing, then the rank that it waits for, and so on; then all ranks that have not answered.
    fn states_from(&self, contents: &Contents, peer: usize) -> String {
        let (mut parts, mut named, mut next) = (Vec::new(), vec![self.rank], Some(peer));
        while let Some(rank) = next.filter(|rank| *rank < self.ranks && !named.contains(rank)) {
            named.push(rank);
            let (state, waits_for) = match &contents.answers[rank] {
                Some(answer) => (answer.activity.clone(), answer.waits_for),
                None => (silence(contents, rank), None),
            };
            parts.push(if parts.is_empty() { state } else { format!("rank {rank} {state}") });
            next = waits_for;
        }
        let silent = (0..self.ranks).filter(|rank| !named.contains(rank) && contents.answers[*rank].is_none());
        parts.extend(silent.map(|rank| format!("rank {rank} {}", silence(contents, rank))));
        parts.join("; ")
    }
}

/// Why a rank has not answered.
fn silence(contents: &Contents, rank: usize) -> String {
    if contents.closed.get(rank) == Some(&true) { "has left the job".to_owned() } else { GONE.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::error::Failure;
    use crate::link::kit::Envelope;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::channel;

    #[test]
    fn what_arrives_while_a_thread_looks_still_wakes_it() {
        let (mailbox, arrived) = (Mailbox::new(0, 2), AtomicBool::new(false));
        let (looks, looked) = channel();
        let (mailbox, arrived) = (&mailbox, &arrived);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                looked.recv().unwrap();
                arrived.store(true, Ordering::SeqCst);
                mailbox.wake();
            });
            let ask = |_| panic!("it slept for half of its time");
            let awaited = Awaited { peer: &|_| 1, what: &|| "a transfer".to_owned(), ask: &ask, late: Duration::ZERO };
            let mut first = true;
            let take = |_: &mut Contents| {
                if std::mem::take(&mut first) {
                    // It arrives after this look, and before this thread sleeps.
                    looks.send(()).unwrap();
                    std::thread::sleep(Duration::from_millis(50));
                    return None;
                }
                arrived.load(Ordering::SeqCst).then_some(())
            };
            mailbox.wait(Instant::now() + Duration::from_secs(20), &awaited, take).unwrap();
        });
    }

    #[test]
    fn a_gather_and_a_recovery_that_a_leaving_rank_has_ended_end_before_its_leaving_shows() {
        let mailbox = Mailbox::new(0, 3);
        let (deadline, ask) = (Instant::now() + Duration::from_secs(20), |_| ());
        let failure = Failure { rank: 1, message: "a broken stage".to_owned() };
        let left = Failure { rank: 2, message: "it has had enough".to_owned() };
        mailbox.handle(1, Envelope::Interrupted { failure, gathers: 0 });
        mailbox.handle(0, Envelope::Recovered);
        // Rank 2 has recovered, ended a gather and left, and rank 1's envelopes are slower.
        mailbox.handle(2, Envelope::Recovered);
        mailbox.handle(2, Envelope::Gather { round: 0, bytes: vec![2] });
        mailbox.handle(2, Envelope::Failed { failure: left.clone(), recoveries: 1, gathers: 1 });
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                mailbox.handle(1, Envelope::Recovered);
                std::thread::sleep(Duration::from_millis(20));
                mailbox.handle(1, Envelope::Gather { round: 0, bytes: vec![1] });
            });
            mailbox.recover(deadline, &ask).unwrap();
            assert_eq!(mailbox.gather(0, vec![0], deadline, &ask).unwrap(), [[0], [1], [2]]);
        });
        assert_eq!(mailbox.fail_if_failed(), Err(LinkError::Peer(left)));
    }

    #[test]
    fn a_gather_that_cannot_end_any_more_ends_although_others_have_ended_it() {
        let mailbox = Mailbox::new(0, 3);
        let (deadline, ask) = (Instant::now() + Duration::from_secs(20), |_| ());
        let lost = |message: &str| Failure { rank: 2, message: message.to_owned() };
        // Rank 1 has rank 2's part, and has seen it fail. Here, rank 2's connection ends without its part.
        mailbox.handle(1, Envelope::Gather { round: 0, bytes: vec![1] });
        mailbox.handle(1, Envelope::Failed { failure: lost("first"), recoveries: 0, gathers: 1 });
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                assert_eq!(mailbox.fail(lost("second")), None, "all others know of it");
            });
            let failed = mailbox.gather(0, vec![0], deadline, &ask).unwrap_err();
            assert_eq!(failed, LinkError::Peer(lost("first")));
        });
    }

    #[test]
    fn a_gather_that_the_failing_rank_has_ended_ends_before_its_failure_shows() {
        let mailbox = Mailbox::new(0, 3);
        let (deadline, ask) = (Instant::now() + Duration::from_secs(20), |_| ());
        let part = |round, from: usize| drop(mailbox.handle(from, Envelope::Gather { round, bytes: vec![from as u8] }));
        let failure = Failure { rank: 1, message: "a broken stage".to_owned() };
        part(0, 1);
        // Rank 1 has all parts, fails in the next call, and its message is faster than rank 2's part.
        mailbox.handle(1, Envelope::Interrupted { failure: failure.clone(), gathers: 1 });
        mailbox.handle(1, Envelope::Recovered);
        // Rank 1's part of the first gather after its recovery must not be taken for one of this call.
        part(0, 1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                part(0, 2);
            });
            let rows = mailbox.gather(0, vec![0], deadline, &ask).unwrap();
            assert_eq!(rows, [[0], [1], [2]]);
        });
        assert_eq!(mailbox.fail_if_failed(), Err(LinkError::Interrupted(failure)));
        mailbox.handle(0, Envelope::Recovered);
        mailbox.handle(2, Envelope::Recovered);
        mailbox.recover(deadline, &ask).unwrap();
        part(0, 2);
        assert_eq!(mailbox.gather(0, vec![3], deadline, &ask).unwrap(), [[3], [1], [2]]);
    }
}
