//! Ranks as threads of one process: payloads never go through host memory.
//!
//! Guarantees: a send never waits; messages of one sender keep their order; a failure wakes every waiting rank at
//! once, and a rank that drops its end wakes those that wait for it; every wait ends at its deadline, which moves
//! while some rank does slow work (`moving_deadline.rs`).
//!
//! 1. Each rank has an inbox: one queue for each sender, under one lock with one condition variable.
//! 2. `send` pushes into the receiver's inbox: the tensors themselves, or copies if the device needs them
//!    (`hand_over.rs`). If the receiver has another device, it moves the payload there, under one lock that all
//!    ranks share. So transfers between devices have one global order: two threads that issue opposite transfers at
//!    once could order the two devices' queues differently, and hang.
//! 3. `all_gather` fills a round's table; the last rank wakes the others.
//! 4. `abort` records the first failure and wakes all ranks. A dropped end is recorded too: messages that its rank
//!    has sent are still received, and then a wait for it fails.
//! 5. `interrupt` also records and wakes, until all ranks meet in `recover`: the last rank to arrive empties all
//!    inboxes and rounds and clears the interruption, while the others wait there and send nothing.

use super::activity::Activity;
use super::error::{AGREEMENT, Failure, LinkError, PANICKED};
use super::hand_over::one_queue;
use super::header::{Header, Message};
use super::link_trait::Link;
use super::monitor::Monitor;
use super::moving_deadline::{Doing, MovingDeadline};
use crate::payload::Payload;
use burn::tensor::Device;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A link between threads of one process; makes their [`ThreadLink`]s.
#[derive(Debug, Clone)]
pub struct Threads {
    shared: Arc<SharedState>,
}

#[derive(Debug)]
struct SharedState {
    inboxes: Vec<Inbox>,
    rounds: Mutex<Rounds>,
    round_done: Condvar,
    doing: Vec<Doing>,
    activity_changes: AtomicU64,
    failures: Mutex<Failures>,
    recovery: Mutex<Recovery>,
    recovered: Condvar,
    /// Ranks that have dropped their end.
    closed: Vec<AtomicBool>,
    between_devices: Mutex<()>,
}

/// The failure that ended the link, and the one that interrupts it.
#[derive(Debug, Default)]
struct Failures {
    end: Option<Failure>,
    interruption: Option<Failure>,
}

/// The ranks that wait in `recover`, and how many recoveries are done.
#[derive(Debug, Default)]
struct Recovery {
    arrived: Vec<bool>,
    times: u64,
}

#[derive(Debug)]
struct Inbox {
    queues: Mutex<Vec<VecDeque<Message>>>,
    arrived: Condvar,
}

/// Incomplete gathers. A rank may be one round ahead of a slow one, never two.
#[derive(Debug, Default)]
struct Rounds {
    open: VecDeque<Round>,
    first: u64,
}

#[derive(Debug, Clone)]
struct Round {
    rows: Vec<Option<Vec<u8>>>,
    taken: usize,
}

impl Threads {
    /// A link for `ranks` threads.
    pub fn new(ranks: usize) -> Self {
        one_queue();
        let inbox = || Inbox { queues: Mutex::new(vec![VecDeque::new(); ranks]), arrived: Condvar::new() };
        Self {
            shared: Arc::new(SharedState {
                inboxes: (0..ranks).map(|_| inbox()).collect(),
                rounds: Mutex::default(),
                round_done: Condvar::new(),
                doing: (0..ranks).map(|_| Doing::default()).collect(),
                activity_changes: AtomicU64::new(0),
                failures: Mutex::default(),
                recovery: Mutex::new(Recovery { arrived: vec![false; ranks], times: 0 }),
                recovered: Condvar::new(),
                closed: (0..ranks).map(|_| AtomicBool::new(false)).collect(),
                between_devices: Mutex::default(),
            }),
        }
    }

    /// The end of one rank. Payloads that it receives are moved to `device`.
    pub fn link(&self, rank: usize, device: Device) -> ThreadLink {
        ThreadLink { shared: self.shared.clone(), rank, device, round: 0 }
    }
}

impl Monitor for Threads {
    fn activity(&self, rank: usize) -> Activity {
        self.shared.doing[rank].activity()
    }

    fn progress(&self) -> u64 {
        self.shared.activity_changes.load(Ordering::Relaxed)
    }

    fn abort(&self, failure: Failure) {
        self.shared.abort(failure);
    }

    fn failure(&self) -> Option<Failure> {
        let failures = self.shared.failures.lock();
        failures.end.clone().or_else(|| failures.interruption.clone())
    }
}

impl SharedState {
    fn abort(&self, failure: Failure) {
        self.failures.lock().end.get_or_insert(failure);
        self.wake();
    }

    fn interrupt(&self, failure: Failure) {
        self.failures.lock().interruption.get_or_insert(failure);
        self.wake();
    }

    /// Drops all messages in flight, while all ranks are in `recover`.
    fn empty(&self) {
        self.inboxes.iter().for_each(|inbox| inbox.queues.lock().iter_mut().for_each(VecDeque::clear));
        *self.rounds.lock() = Rounds::default();
        self.failures.lock().interruption = None;
    }

    /// Wakes all ranks.
    fn wake(&self) {
        // Taking each lock ensures that no rank is between its last check and its wait.
        for inbox in &self.inboxes {
            let _queues = inbox.queues.lock();
            inbox.arrived.notify_all();
        }
        drop(self.rounds.lock());
        self.round_done.notify_all();
        drop(self.recovery.lock());
        self.recovered.notify_all();
    }

    /// What a rank is doing, then the rank that it waits for, and so on.
    fn states_from(&self, first: usize) -> String {
        let (mut states, mut asked, mut next) = (Vec::new(), Vec::new(), Some(first));
        while let Some(rank) = next.filter(|rank| !asked.contains(rank)) {
            let activity = self.doing[rank].activity();
            states.push(if rank == first { activity.to_string() } else { format!("rank {rank} {activity}") });
            asked.push(rank);
            next = if let Activity::Waiting(_, other) = activity { Some(other) } else { None };
        }
        states.join("; ")
    }

    fn has_left(&self, rank: usize) -> bool {
        self.closed.get(rank).is_some_and(|closed| closed.load(Ordering::SeqCst))
    }

    fn fail_if_aborted(&self) -> Result<(), LinkError> {
        self.failures.lock().end.clone().map_or(Ok(()), |failure| Err(LinkError::Peer(failure)))
    }

    fn fail_if_interrupted(&self) -> Result<(), LinkError> {
        self.fail_if_aborted()?;
        self.failures.lock().interruption.clone().map_or(Ok(()), |failure| Err(LinkError::Interrupted(failure)))
    }
}

/// One thread's end of a link between threads of one process.
///
/// Sends are unbounded: messages wait in memory until the receiver takes them. Dropping it closes the link for the
/// others.
#[derive(Debug)]
pub struct ThreadLink {
    shared: Arc<SharedState>,
    rank: usize,
    device: Device,
    round: u64,
}

impl ThreadLink {
    fn doing(&self) -> &Doing {
        &self.shared.doing[self.rank]
    }

    /// The error of a wait for a rank that has left.
    fn left(&self, peer: usize, what: String) -> LinkError {
        LinkError::Left { rank: self.rank, peer, what }
    }

    /// The time left to wait; `None` if the deadline has passed and no rank does slow work.
    fn left_to_wait(&self, moving: &mut MovingDeadline<'_>) -> Option<Duration> {
        remaining(moving.deadline).or_else(|| {
            let (own, mut others) = (self.doing().activity(), (0..self.ranks()).filter(|&rank| rank != self.rank));
            let slow = others.any(|rank| {
                !self.shared.closed[rank].load(Ordering::SeqCst) && own.waits_on_for(self.shared.doing[rank].pace())
            });
            let prolonged = slow && moving.prolong();
            // This counts as progress: a thread that waits for this rank sees that it does not hang.
            prolonged.then(|| self.shared.activity_changes.fetch_add(1, Ordering::Relaxed));
            remaining(moving.deadline)
        })
    }

    fn too_late(&self, peer: usize, what: String, since: Instant) -> LinkError {
        let peer_state = self.shared.states_from(peer);
        LinkError::Deadline { rank: self.rank, peer, what, seconds: since.elapsed().as_secs_f64(), peer_state }
    }
}

impl Link for ThreadLink {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.shared.inboxes.len()
    }

    fn monitor(&self) -> Arc<dyn Monitor> {
        Arc::new(Threads { shared: self.shared.clone() })
    }

    fn to_device(&self, payload: Payload) -> Payload {
        if payload.tensors().all(|tensor| tensor.device() == self.device) {
            return payload.taken();
        }
        let _turn = self.shared.between_devices.lock();
        let Ok(payload) = payload.map_tensors(|_, tensor| Ok::<_, Infallible>(tensor.to_device(&self.device)));
        payload
    }

    fn set_activity(&mut self, activity: Activity) {
        self.shared.activity_changes.fetch_add(1, Ordering::Relaxed);
        self.doing().set(activity);
    }

    fn send(&mut self, to: usize, message: Message, _: Instant) -> Result<(), LinkError> {
        self.shared.fail_if_interrupted()?;
        let missing = LinkError::NoSuchRank { rank: to, ranks: self.ranks() };
        let inbox = self.shared.inboxes.get(to).ok_or(missing)?;
        let payload = message.payload.unshared();
        inbox.queues.lock()[self.rank].push_back(Message { payload, ..message });
        inbox.arrived.notify_all();
        Ok(())
    }

    fn receive(&mut self, from: usize, header: Header, deadline: Instant) -> Result<Payload, LinkError> {
        let (since, mut moving) = (Instant::now(), self.doing().wait(deadline));
        let inbox = &self.shared.inboxes[self.rank];
        let mut queues = inbox.queues.lock();
        if from >= queues.len() {
            return Err(LinkError::NoSuchRank { rank: from, ranks: queues.len() });
        }
        loop {
            if let Some(message) = queues[from].pop_front() {
                drop(queues);
                if message.header == header {
                    return Ok(self.to_device(message.payload));
                }
                let (expected, got) = (header.to_string(), message.header.to_string());
                return Err(LinkError::Order { rank: self.rank, peer: from, expected, got });
            }
            self.shared.fail_if_interrupted()?;
            if self.shared.has_left(from) {
                return Err(self.left(from, header.to_string()));
            }
            let left = self.left_to_wait(&mut moving);
            let left = left.ok_or_else(|| self.too_late(from, header.to_string(), since))?;
            inbox.arrived.wait_for(&mut queues, left);
        }
    }

    fn probe(&mut self, from: &[usize], deadline: Instant) -> Result<Option<(usize, Header)>, LinkError> {
        let since = Instant::now();
        let inbox = &self.shared.inboxes[self.rank];
        let mut queues = inbox.queues.lock();
        loop {
            let next = |&rank: &usize| Some((rank, queues.get(rank)?.front()?.header));
            if let Some(next) = from.iter().find_map(next) {
                return Ok(Some(next));
            }
            self.shared.fail_if_interrupted()?;
            if from.iter().any(|&rank| self.shared.has_left(rank)) {
                return Ok(None);
            }
            let Some(left) = remaining(deadline) else {
                if deadline > since {
                    self.doing().found_nothing(since);
                }
                return Ok(None);
            };
            inbox.arrived.wait_for(&mut queues, left);
        }
    }

    fn all_gather(&mut self, bytes: Vec<u8>, deadline: Instant) -> Result<Vec<Vec<u8>>, LinkError> {
        self.shared.fail_if_interrupted()?;
        let (since, mut moving) = (Instant::now(), self.shared.doing[self.rank].wait(deadline));
        let ranks = self.ranks();
        let mut rounds = self.shared.rounds.lock();
        let place = (self.round - rounds.first) as usize;
        if place == rounds.open.len() {
            rounds.open.push_back(Round { rows: vec![None; ranks], taken: 0 });
        }
        rounds.open[place].rows[self.rank] = Some(bytes);
        self.shared.round_done.notify_all();
        loop {
            let place = (self.round - rounds.first) as usize;
            let round = &mut rounds.open[place];
            if let Some(table) = round.rows.iter().cloned().collect::<Option<Vec<_>>>() {
                round.taken += 1;
                if round.taken == ranks {
                    rounds.open.pop_front();
                    rounds.first += 1;
                }
                self.round += 1;
                return Ok(table);
            }
            // Report a rank that has left before one that may still come.
            let missing = || (0..ranks).filter(|&rank| round.rows[rank].is_none());
            let gone = missing().find(|&rank| self.shared.has_left(rank));
            let missing = missing().next().unwrap_or(self.rank);
            self.shared.fail_if_interrupted()?;
            if let Some(gone) = gone {
                return Err(self.left(gone, "its part of a gather".to_owned()));
            }
            let Some(left) = self.left_to_wait(&mut moving) else {
                return Err(self.too_late(missing, "its part of a gather".to_owned(), since));
            };
            self.shared.round_done.wait_for(&mut rounds, left);
        }
    }

    fn abort(&mut self, message: String) {
        self.shared.abort(Failure { rank: self.rank, message });
    }

    fn interrupt(&mut self, message: String) {
        self.shared.interrupt(Failure { rank: self.rank, message });
    }

    fn recover(&mut self, deadline: Instant) -> Result<(), LinkError> {
        let (since, shared) = (Instant::now(), self.shared.clone());
        let mut moving = shared.doing[self.rank].wait(deadline);
        let mut recovery = shared.recovery.lock();
        let times = recovery.times;
        recovery.arrived[self.rank] = true;
        if recovery.arrived.iter().all(|&arrived| arrived) {
            shared.empty();
            recovery.arrived.fill(false);
            recovery.times += 1;
            shared.recovered.notify_all();
        }
        while recovery.times == times {
            shared.fail_if_aborted()?;
            let missing =
                || recovery.arrived.iter().enumerate().filter(|(_, arrived)| !**arrived).map(|(rank, _)| rank);
            if let Some(gone) = missing().find(|&rank| shared.has_left(rank)) {
                return Err(self.left(gone, AGREEMENT.to_owned()));
            }
            let first = missing().next().unwrap_or(self.rank);
            let left = self.left_to_wait(&mut moving);
            let left = left.ok_or_else(|| self.too_late(first, AGREEMENT.to_owned(), since))?;
            shared.recovered.wait_for(&mut recovery, left);
        }
        self.round = 0;
        Ok(())
    }
}

impl Drop for ThreadLink {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.abort(PANICKED.to_owned());
        }
        self.shared.closed[self.rank].store(true, Ordering::SeqCst);
        self.shared.wake();
    }
}

/// Time left until a deadline; `None` once it has passed.
fn remaining(deadline: Instant) -> Option<Duration> {
    deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
}
