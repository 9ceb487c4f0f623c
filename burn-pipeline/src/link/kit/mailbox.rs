//! State that a rank's computing thread shares with its link's threads: what has arrived, and who failed.
//!
//! 1. The link's threads put in complete messages ([`Mailbox::deliver`]) and hand over all other envelopes
//!    ([`Mailbox::handle`]).
//! 2. The computing thread waits for them (`waiting.rs`).
//! 3. The first failure ends every wait, and stays. A rank may fail or leave as soon as it has ended a gather or a
//!    recovery in which another one still waits: that one ends it first, since all ranks had sent their parts.
//! 4. An interruption ends every wait until all ranks have recovered. Each rank sends every other rank
//!    [`Envelope::Recovered`]. The receiver drops what had come from the sender before it, and keeps what comes
//!    after it. A rank has recovered when all have sent it. Another rank may by then be in the next call, and be
//!    interrupted there, so interruptions are stored under the number of recoveries that their sender had begun.

use super::envelope::{Answer, Envelope};
use super::frame::Frame;
use crate::link::error::{Failure, LinkError};
use crate::link::monitor::Activity;
use crate::link::moving_deadline::Doing;
use burn::tensor::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One rank's mailbox on one link.
#[derive(Debug)]
pub struct Mailbox {
    /// This rank.
    pub rank: usize,
    /// The number of ranks.
    pub ranks: usize,
    contents: Mutex<Contents>,
    pub(super) changed: Condvar,
    pub(super) doing: Doing,
    pub(super) activities: AtomicU64,
    pub(super) waiting: AtomicBool,
}

/// A message with all of its tensors.
pub(super) type Delivery = (Frame, Vec<Bytes>);

/// What has arrived.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Messages of each rank, in order.
    pub(super) inbox: Vec<VecDeque<Delivery>>,
    /// The ranks' bytes in gathers that are incomplete or not yet taken, by the number of recoveries that the sender
    /// had begun, and the round since then.
    gathers: BTreeMap<(u64, u64), Vec<Option<Vec<u8>>>>,
    /// The first failure that this rank knows.
    failure: Option<Failure>,
    /// The recoveries, and the gathers since, that the ranks which told of failures had all ended.
    failed_after: (u64, u64),
    /// The number of the last question.
    pub(super) question: u64,
    /// Each rank's answer to the last question.
    pub(super) answers: Vec<Option<Answer>>,
    /// Ranks that have closed the link.
    pub(super) closed: Vec<bool>,
    /// Why nothing more can arrive, if nothing can.
    pub(super) broken: Option<LinkError>,
    /// Interruptions, by the number of earlier recoveries, each with the number of gathers that its sender had ended.
    interruptions: BTreeMap<u64, (Failure, u64)>,
    /// How many gathers this rank has ended since the last recovery.
    gathered: u64,
    /// How many recoveries each rank has begun.
    begun: Vec<u64>,
    /// How many recoveries have ended here.
    recovered: u64,
}

impl Contents {
    /// The recoveries that this rank has ended, and the gathers since.
    fn reached(&self) -> (u64, u64) {
        (self.recovered, self.gathered)
    }

    /// Stores the first failure. Returns true if it is the first. A later one may come from a rank that has ended less:
    /// then no more can be ended here either.
    fn put_failure(&mut self, failure: Failure, after: (u64, u64)) -> bool {
        let first = self.failure.is_none();
        self.failed_after = if first { after } else { after.min(self.failed_after) };
        self.failure.get_or_insert(failure);
        first
    }

    /// Refuses to wait after a failure, once this rank has ended what the failed rank had ended.
    fn refuse_failed(&self) -> Result<(), LinkError> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        match &self.failure {
            Some(failure) if self.failed_after <= self.reached() => Err(LinkError::Peer(failure.clone())),
            _ => Ok(()),
        }
    }

    /// As [`Contents::refuse_failed`], but also refuses an interruption, unless this rank is recovering from it, or
    /// is in a gather that the interrupted rank has ended.
    pub(super) fn refuse_interrupted(&self, rank: usize) -> Result<(), LinkError> {
        self.refuse_failed()?;
        match self.interruptions.get(&self.recovered) {
            Some((failure, gathers)) if self.begun[rank] == self.recovered && self.gathered >= *gathers => {
                Err(LinkError::Interrupted(failure.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Stores an interruption of the call after `recoveries`. Of several, the first names the failure.
    fn put_interruption(&mut self, recoveries: u64, failure: Failure, gathers: u64) {
        let (_, first) = self.interruptions.entry(recoveries).or_insert((failure, gathers));
        *first = gathers.min(*first);
    }

    /// A rank begins to recover: drops its earlier messages. Its parts of gathers stay until all have recovered, since
    /// this rank may still be in one that the other has ended.
    fn begin_recovery(&mut self, from: usize) {
        self.begun[from] += 1;
        self.inbox[from].clear();
    }

    /// A rank that has not begun to recover: the first that has left, or else the first.
    pub(super) fn not_recovering(&self) -> Option<usize> {
        let waits = || (0..self.begun.len()).filter(|&rank| self.begun[rank] == self.recovered);
        waits().find(|&rank| self.closed[rank]).or_else(|| waits().next())
    }

    /// Ends the recovery if all ranks have begun it.
    pub(super) fn end_recovery(&mut self) -> bool {
        let all = self.not_recovering().is_none();
        if all {
            self.recovered += 1;
            self.gathered = 0;
            self.interruptions = self.interruptions.split_off(&self.recovered);
            self.gathers = self.gathers.split_off(&(self.recovered, 0));
        }
        all
    }

    pub(super) fn put_gather(&mut self, round: u64, from: usize, bytes: Vec<u8>) {
        let ranks = self.closed.len();
        self.gathers.entry((self.begun[from], round)).or_insert_with(|| vec![None; ranks])[from] = Some(bytes);
    }

    /// The parts of a gather that have arrived.
    pub(super) fn gather(&self, round: u64) -> Option<&Vec<Option<Vec<u8>>>> {
        self.gathers.get(&(self.recovered, round))
    }

    /// Ends a gather if all parts have arrived.
    pub(super) fn end_gather(&mut self, round: u64) -> Option<Vec<Vec<u8>>> {
        self.gather(round)?.iter().all(Option::is_some).then_some(())?;
        let rows = self.gathers.remove(&(self.recovered, round))?;
        self.gathered += 1;
        Some(rows.into_iter().flatten().collect())
    }
}

impl Mailbox {
    /// An empty mailbox.
    pub fn new(rank: usize, ranks: usize) -> Self {
        let contents = Contents {
            inbox: (0..ranks).map(|_| VecDeque::new()).collect(),
            answers: vec![None; ranks],
            closed: vec![false; ranks],
            begun: vec![0; ranks],
            ..Contents::default()
        };
        Self {
            rank,
            ranks,
            contents: Mutex::new(contents),
            changed: Condvar::new(),
            doing: Doing::default(),
            activities: AtomicU64::new(0),
            waiting: AtomicBool::new(false),
        }
    }

    /// Locks the contents. Call [`Mailbox::wake`] after a change that a thread may wait for.
    pub(super) fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock()
    }

    /// All ranks but this one.
    pub fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.rank;
        (0..self.ranks).filter(move |&rank| rank != me)
    }

    /// Checks that a rank exists.
    ///
    /// # Errors
    /// Returns [`LinkError::NoSuchRank`].
    pub fn known(&self, rank: usize) -> Result<usize, LinkError> {
        let ranks = self.ranks;
        if rank < ranks { Ok(rank) } else { Err(LinkError::NoSuchRank { rank, ranks }) }
    }

    /// Adds a message, and wakes the waiting thread.
    pub fn deliver(&self, from: usize, message: (Frame, Vec<Bytes>)) {
        self.contents().inbox[from].push_back(message);
        self.changed.notify_all();
    }

    /// Handles an envelope that is not a message, and wakes the waiting thread. Returns the reply to send, if any.
    pub fn handle(&self, from: usize, envelope: Envelope) -> Option<Envelope> {
        let mut contents = self.contents();
        match envelope {
            Envelope::Message(_) => {}
            Envelope::Gather { round, bytes } => contents.put_gather(round, from, bytes),
            Envelope::Failed { failure, recoveries, gathers } => {
                contents.put_failure(failure, (recoveries, gathers));
            }
            Envelope::Ask { question } => {
                drop(contents);
                let activity = self.own_activity();
                let waits_for = if let Activity::Waiting(_, peer) = activity { Some(peer) } else { None };
                let (pace, activity) = (self.doing.pace(), activity.to_string());
                return Some(Envelope::Answer { question, answer: Answer { waits_for, activity, pace } });
            }
            Envelope::Answer { question, answer } => {
                // An answer to an earlier question says nothing about this wait.
                if question == contents.question {
                    contents.answers[from] = Some(answer);
                }
            }
            Envelope::Close => contents.closed[from] = true,
            Envelope::Interrupted { failure, gathers } => {
                let before = contents.begun[from];
                contents.put_interruption(before, failure, gathers);
            }
            Envelope::Recovered => contents.begin_recovery(from),
        }
        drop(contents);
        self.wake();
        None
    }

    /// Wakes the waiting thread.
    pub fn wake(&self) {
        // The awaited change may lie outside the contents (a GPU transfer that ended). A thread that has checked
        // and not yet gone to sleep still holds the lock; without taking it here, that thread would miss the
        // wake-up.
        drop(self.contents());
        self.changed.notify_all();
    }

    /// Records what this rank is doing.
    pub fn set_activity(&self, activity: Activity) {
        self.activities.fetch_add(1, Ordering::Relaxed);
        self.doing.set(activity);
    }

    /// What this rank was last doing.
    pub fn own_activity(&self) -> Activity {
        self.doing.activity()
    }

    /// Returns true if the computing thread waits.
    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Returns true if there was a failure, here or elsewhere.
    pub fn has_failed(&self) -> bool {
        let contents = self.contents();
        contents.failure.is_some() || contents.broken.is_some()
    }

    /// Returns true if a rank has closed the link.
    pub fn has_closed(&self, rank: usize) -> bool {
        self.contents().closed[rank]
    }

    /// The envelope that tells another rank of a failure.
    pub fn failed(&self, failure: Failure) -> Envelope {
        let (recoveries, gathers) = self.contents().reached();
        Envelope::Failed { failure, recoveries, gathers }
    }

    /// Records a failure, and wakes the waiting thread. Returns the envelope that tells the other ranks, if it is the
    /// first failure: so none is sent around forever.
    pub fn fail(&self, failure: Failure) -> Option<Envelope> {
        let mut contents = self.contents();
        let (recoveries, gathers) = contents.reached();
        let first = contents.put_failure(failure.clone(), (recoveries, gathers));
        drop(contents);
        self.wake();
        first.then_some(Envelope::Failed { failure, recoveries, gathers })
    }

    /// Records why nothing more can arrive, and wakes the waiting thread.
    pub fn break_off(&self, error: LinkError) {
        self.contents().broken.get_or_insert(error);
        self.wake();
    }

    /// Returns an error if a failure is known.
    ///
    /// # Errors
    /// Returns the first failure.
    pub fn fail_if_failed(&self) -> Result<(), LinkError> {
        self.contents().refuse_interrupted(self.rank)
    }

    /// Records that this rank's call failed, and wakes the waiting thread. Returns the envelope that tells the other
    /// ranks, if it is the first interruption.
    pub(super) fn interrupt(&self, failure: Failure) -> Option<Envelope> {
        let mut contents = self.contents();
        let (recovered, gathers) = contents.reached();
        let first = !contents.interruptions.contains_key(&recovered);
        contents.put_interruption(recovered, failure.clone(), gathers);
        drop(contents);
        self.wake();
        first.then_some(Envelope::Interrupted { failure, gathers })
    }

    /// How many gathers this rank has ended since the last recovery: the number of the next one.
    pub(super) fn gathered(&self) -> u64 {
        self.contents().gathered
    }

    /// The failure that ended the link, if one did.
    pub(super) fn end(&self) -> Option<Failure> {
        self.contents().failure.clone()
    }

    /// A number that changes whenever this rank changes its activity.
    pub(super) fn progress(&self) -> u64 {
        self.activities.load(Ordering::Relaxed)
    }

    /// The failure that ended the link or interrupts it.
    pub(super) fn failure(&self) -> Option<Failure> {
        let contents = self.contents();
        let interruption = || contents.interruptions.get(&contents.recovered).map(|(failure, _)| failure.clone());
        contents.failure.clone().or_else(interruption)
    }
}
