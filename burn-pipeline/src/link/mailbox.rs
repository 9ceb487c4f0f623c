//! What the computing thread of one rank shares with the threads that serve its link: what has come, and who failed.
//!
//! Guarantees: a wait ends at its deadline, or at once when a failure is known; before it gives up, every rank was
//! asked what it is doing, so that the error can tell a rank that is busy from one that is gone.

use crate::link::{Activity, Failure, Frame, Header, LinkError, Watch};
use burn::tensor::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What is said of a rank that a question did not reach, or whose answer did not come.
const GONE: &str = "does not answer (killed, stopped, or its machine is lost)";

/// One rank's mailbox on one link.
#[derive(Debug)]
pub struct Mailbox {
    /// This rank.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
    contents: Mutex<Contents>,
    changed: Condvar,
    activity: Mutex<Activity>,
    announced: AtomicU64,
    waiting: AtomicBool,
}

/// A message whose tensors have all come.
pub type Whole = (Frame, Vec<Bytes>);

/// What has come.
#[derive(Debug, Default)]
pub struct Contents {
    /// Whole messages of each rank, in order.
    pub inbox: Vec<VecDeque<Whole>>,
    /// Whole messages within groups, by group and rank, in order.
    pub group_inbox: BTreeMap<(usize, usize), VecDeque<Whole>>,
    /// Rows of gathers that are not complete or not taken yet, by round.
    pub rows: BTreeMap<u64, Vec<Option<Vec<u8>>>>,
    /// The first failure that is known here.
    pub failure: Option<Failure>,
    /// The number of the last question.
    pub question: u64,
    /// Each rank's answer to the last question: what it is doing, and which rank it waits for, if it does.
    pub answers: Vec<Option<(String, Option<usize>)>>,
    /// Ranks that send nothing more.
    pub byes: Vec<bool>,
    /// Why nothing more can come, if so.
    pub broken: Option<LinkError>,
    /// A failure that the other ranks are to hear of.
    pub outgoing_failure: Option<Failure>,
}

impl Contents {
    /// The next whole message of a rank, within a group or not.
    pub fn take(&mut self, group: Option<usize>, from: usize) -> Option<Whole> {
        match group {
            None => self.inbox[from].pop_front(),
            Some(group) => self.group_inbox.get_mut(&(group, from))?.pop_front(),
        }
    }

    /// Was there a failure, here or elsewhere?
    pub fn failed(&self) -> bool {
        self.failure.is_some() || self.broken.is_some()
    }
}

/// What a wait is for, for its error.
#[expect(missing_debug_implementations, reason = "it holds closures")]
pub struct Awaited<'a> {
    /// The rank that is waited for.
    pub peer: &'a dyn Fn(&Contents) -> usize,
    /// What is to come.
    pub what: &'a dyn Fn() -> String,
    /// Asks all ranks what they are doing.
    pub ask: &'a dyn Fn(u64),
}

impl Mailbox {
    /// An empty mailbox.
    pub fn new(rank: usize, ranks: usize) -> Self {
        let contents = Contents {
            inbox: (0..ranks).map(|_| VecDeque::new()).collect(),
            answers: vec![None; ranks],
            byes: vec![false; ranks],
            ..Contents::default()
        };
        Self {
            rank,
            ranks,
            contents: Mutex::new(contents),
            changed: Condvar::new(),
            activity: Mutex::default(),
            announced: AtomicU64::new(0),
            waiting: AtomicBool::new(false),
        }
    }

    /// The contents, to be read or changed; [`Mailbox::wake`] afterwards where somebody may wait for the change.
    pub fn contents(&self) -> MutexGuard<'_, Contents> {
        // Poisoning is of no interest: contents stay whole.
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a message where who waits for it looks.
    pub fn deliver(&self, group: Option<usize>, from: usize, message: Whole) {
        let mut contents = self.contents();
        match group {
            None => contents.inbox[from].push_back(message),
            Some(group) => contents.group_inbox.entry((group, from)).or_default().push_back(message),
        }
    }

    /// Wakes who waits. What is waited for may have changed outside the contents (where GPUs' transfers end), so they
    /// are locked for a moment: a thread that has looked and does not sleep yet would miss it otherwise.
    pub fn wake(&self) {
        drop(self.contents());
        self.changed.notify_all();
    }

    /// Notes what this rank is doing.
    pub fn announce(&self, activity: Activity) {
        self.announced.fetch_add(1, Ordering::Relaxed);
        *self.activity.lock().unwrap_or_else(PoisonError::into_inner) = activity;
    }

    /// What this rank was last doing.
    pub fn own_activity(&self) -> Activity {
        *self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the computing thread stand waiting?
    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Fails if a failure is known.
    ///
    /// # Errors
    /// With the first failure.
    pub fn fail_if_failed(&self) -> Result<(), LinkError> {
        refuse_failed(&self.contents())
    }

    /// Waits until `take` gives something.
    ///
    /// # Errors
    /// With the first failure, or if the deadline passes.
    pub fn wait<T>(
        &self,
        deadline: Instant,
        awaited: &Awaited<'_>,
        mut take: impl FnMut(&mut Contents) -> Option<T>,
    ) -> Result<T, LinkError> {
        let since = Instant::now();
        let doubtful = since + deadline.saturating_duration_since(since) / 2;
        let mut asked = false;
        let mut contents = self.contents();
        self.waiting.store(true, Ordering::Relaxed);
        let result = loop {
            if let Some(taken) = take(&mut contents) {
                break Ok(taken);
            }
            if let Err(error) = refuse_failed(&contents) {
                break Err(error);
            }
            let now = Instant::now();
            if now >= deadline {
                break Err(self.too_late(&contents, awaited, since, asked));
            }
            if now >= doubtful && !asked {
                asked = true;
                contents.question += 1;
                contents.answers = vec![None; self.ranks];
                (awaited.ask)(contents.question);
            }
            let until = if asked { deadline } else { doubtful };
            let left = until.saturating_duration_since(now);
            contents = self.changed.wait_timeout(contents, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        self.waiting.store(false, Ordering::Relaxed);
        result
    }

    /// Waits until the next message of one of these ranks is here; `None` when the deadline passes.
    ///
    /// # Errors
    /// With the first failure.
    pub fn arrived(&self, from: &[usize], deadline: Instant) -> Result<Option<(usize, Header)>, LinkError> {
        let mut contents = self.contents();
        loop {
            let next = |&rank: &usize| contents.inbox.get(rank)?.front().map(|(frame, _)| (rank, frame.header()));
            if let Some(next) = from.iter().find_map(next) {
                return Ok(Some(next));
            }
            refuse_failed(&contents)?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.waiting.store(true, Ordering::Relaxed);
            contents = self.changed.wait_timeout(contents, left).unwrap_or_else(PoisonError::into_inner).0;
            self.waiting.store(false, Ordering::Relaxed);
        }
    }

    fn too_late(&self, contents: &Contents, awaited: &Awaited<'_>, since: Instant, asked: bool) -> LinkError {
        let peer = (awaited.peer)(contents);
        let peer_state = if asked { self.chain(contents, peer) } else { "had no time to answer".to_owned() };
        let (seconds, what) = (since.elapsed().as_secs_f64(), (awaited.what)());
        LinkError::Deadline { rank: self.rank, peer, what, seconds, peer_state }
    }

    /// What a rank is doing, and the one that it waits for, and so on; then all that do not answer.
    fn chain(&self, contents: &Contents, peer: usize) -> String {
        let (mut parts, mut named, mut next) = (Vec::new(), vec![self.rank], Some(peer));
        while let Some(rank) = next.filter(|rank| *rank < self.ranks && !named.contains(rank)) {
            named.push(rank);
            let (state, waits_for) = contents.answers[rank].clone().unwrap_or_else(|| (GONE.to_owned(), None));
            parts.push(if parts.is_empty() { state } else { format!("rank {rank} {state}") });
            next = waits_for;
        }
        let silent = (0..self.ranks).filter(|rank| !named.contains(rank) && contents.answers[*rank].is_none());
        parts.extend(silent.map(|rank| format!("rank {rank} {GONE}")));
        parts.join("; ")
    }
}

fn refuse_failed(contents: &Contents) -> Result<(), LinkError> {
    if let Some(broken) = &contents.broken {
        return Err(broken.clone());
    }
    contents.failure.clone().map_or(Ok(()), |failure| Err(LinkError::Peer(failure)))
}

impl Watch for Mailbox {
    fn activity(&self, rank: usize) -> Activity {
        // What others do is asked only where a wait is about to fail, and then told in the error.
        if rank == self.rank { self.own_activity() } else { Activity::Idle }
    }

    fn progress(&self) -> u64 {
        self.announced.load(Ordering::Relaxed)
    }

    fn abort(&self, failure: Failure) {
        let mut contents = self.contents();
        if contents.failure.is_none() {
            contents.failure = Some(failure.clone());
            contents.outgoing_failure = Some(failure);
        }
        drop(contents);
        self.wake();
    }

    fn failure(&self) -> Option<Failure> {
        self.contents().failure.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn what_comes_while_a_thread_looks_still_wakes_it() {
        let (mailbox, come) = (Mailbox::new(0, 2), AtomicBool::new(false));
        let (looks, looked) = channel();
        let (mailbox, come) = (&mailbox, &come);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                looked.recv().unwrap();
                come.store(true, Ordering::SeqCst);
                mailbox.wake();
            });
            let ask = |_| panic!("it slept through half of its time");
            let awaited = Awaited { peer: &|_| 1, what: &|| "a transfer".to_owned(), ask: &ask };
            let mut first = true;
            let take = |_: &mut Contents| {
                if std::mem::take(&mut first) {
                    // It comes after this look, and before this thread sleeps.
                    looks.send(()).unwrap();
                    std::thread::sleep(Duration::from_millis(50));
                    return None;
                }
                come.load(Ordering::SeqCst).then_some(())
            };
            mailbox.wait(Instant::now() + Duration::from_secs(20), &awaited, take).unwrap();
        });
    }
}
