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
//! 3. `all_gather` fills a table; the last rank wakes the others.
//! 4. `abort` records the first failure and wakes all ranks. A dropped end is recorded too: messages that its rank
//!    has sent are still received, and then a wait for it fails.
//! 5. `interrupt` also records and wakes, until all ranks meet in `recover`, at a table as in a gather: the last rank
//!    to arrive empties all inboxes and tables and clears the interruption, while the others wait there and send
//!    nothing.

use super::error::{AGREEMENT, Failure, LinkError, PANICKED};
use super::hand_over::one_queue;
use super::header::{Header, Message};
use super::link_trait::Link;
use super::monitor::{Activity, Monitor};
use super::moving_deadline::{Doing, MovingDeadline};
use crate::payload::Payload;
use burn::tensor::Device;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
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
    /// What has arrived for each rank: one queue for each sender.
    inboxes: Vec<Watched<Vec<VecDeque<Message>>>>,
    /// The tables that not all ranks have taken.
    tables: Watched<BTreeMap<TableNumber, Table>>,
    doing: Vec<Doing>,
    activity_changes: AtomicU64,
    failures: Mutex<Failures>,
    /// Ranks that have dropped their end.
    closed: Vec<AtomicBool>,
    between_devices: Mutex<()>,
}

/// State, and what wakes the ranks that wait for it to change.
#[derive(Debug, Default)]
struct Watched<S> {
    state: Mutex<S>,
    changed: Condvar,
}

/// The failure that ended the link, and the one that interrupts it.
#[derive(Debug, Default)]
struct Failures {
    end: Option<Failure>,
    interruption: Option<Failure>,
}

/// The ranks' bytes in a gather. In a recovery they are empty.
#[derive(Debug)]
struct Table {
    rows: Vec<Option<Vec<u8>>>,
    /// How many ranks have taken the rows.
    taken: usize,
}

/// The number of a table: how many recoveries came before it, and how many gathers since.
type TableNumber = (u64, u64);

/// The second part of a recovery's number.
const RECOVERY: u64 = u64::MAX;

impl Threads {
    /// A link for `ranks` threads.
    pub fn new(ranks: usize) -> Self {
        one_queue();
        Self {
            shared: Arc::new(SharedState {
                inboxes: (0..ranks).map(|_| Watched::new(vec![VecDeque::new(); ranks])).collect(),
                tables: Watched::default(),
                doing: (0..ranks).map(|_| Doing::default()).collect(),
                activity_changes: AtomicU64::new(0),
                failures: Mutex::default(),
                closed: (0..ranks).map(|_| AtomicBool::new(false)).collect(),
                between_devices: Mutex::default(),
            }),
        }
    }

    /// The end of one rank. Payloads that it receives are moved to `device`.
    ///
    /// # Panics
    /// Panics if there is no such rank.
    pub fn link(&self, rank: usize, device: Device) -> ThreadLink {
        let ranks = self.shared.doing.len();
        assert!(rank < ranks, "there is no rank {rank} of {ranks}");
        ThreadLink { shared: self.shared.clone(), rank, device, next_gather: (0, 0) }
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

impl<S> Watched<S> {
    fn new(state: S) -> Self {
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn wake(&self) {
        // Taking the lock ensures that no rank is between its last check and its wait.
        drop(self.state.lock());
        self.changed.notify_all();
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

    /// Wakes all ranks.
    fn wake(&self) {
        self.inboxes.iter().for_each(Watched::wake);
        self.tables.wake();
    }

    /// Drops all messages in flight and the interruption, while all ranks are in `recover`.
    fn empty(&self) {
        self.inboxes.iter().for_each(|inbox| inbox.state.lock().iter_mut().for_each(VecDeque::clear));
        self.failures.lock().interruption = None;
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

    /// Refuses to go on after a failure. A rank that recovers from an interruption goes on after that.
    fn refuse_failed(&self, recovers: bool) -> Result<(), LinkError> {
        let failures = self.failures.lock();
        match (&failures.end, &failures.interruption) {
            (Some(end), _) => Err(LinkError::Peer(end.clone())),
            (None, Some(interruption)) if !recovers => Err(LinkError::Interrupted(interruption.clone())),
            _ => Ok(()),
        }
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
    next_gather: TableNumber,
}

impl ThreadLink {
    fn doing(&self) -> &Doing {
        &self.shared.doing[self.rank]
    }

    /// The error of a rank that does not exist.
    fn missing(&self, rank: usize) -> LinkError {
        LinkError::NoSuchRank { rank, ranks: self.ranks() }
    }

    /// Waits for `what` until `take` returns it. It is still to come from the ranks for which `awaits` is true.
    ///
    /// # Errors
    /// Returns the first failure (see [`SharedState::refuse_failed`]), or an error that names an awaited rank, if that
    /// has left or the deadline passes.
    fn wait<S, T>(
        &self,
        watched: &Watched<S>,
        (what, deadline): (&dyn Display, Instant),
        recovers: bool,
        awaits: impl Fn(&S, usize) -> bool,
        mut take: impl FnMut(&mut S) -> Option<T>,
    ) -> Result<T, LinkError> {
        let (since, mut moving, rank) = (Instant::now(), self.doing().wait(deadline), self.rank);
        let mut state = watched.state.lock();
        loop {
            if let Some(taken) = take(&mut state) {
                return Ok(taken);
            }
            self.shared.refuse_failed(recovers)?;
            let awaited = || (0..self.ranks()).filter(|&rank| awaits(&state, rank));
            // Report a rank that has left before one that may still come.
            if let Some(peer) = awaited().find(|&rank| self.shared.has_left(rank)) {
                return Err(LinkError::Left { rank, peer, what: what.to_string() });
            }
            let Some(left) = self.left_to_wait(&mut moving) else {
                let (peer, seconds) = (awaited().next().unwrap_or(rank), since.elapsed().as_secs_f64());
                let peer_state = self.shared.states_from(peer);
                return Err(LinkError::Deadline { rank, peer, what: what.to_string(), seconds, peer_state });
            };
            watched.changed.wait_for(&mut state, left);
        }
    }

    /// Puts this rank's bytes into a table, and waits for those of all ranks.
    fn meet(
        &self,
        number: TableNumber,
        bytes: Vec<u8>,
        until: (&dyn Display, Instant),
    ) -> Result<Vec<Vec<u8>>, LinkError> {
        let (ranks, tables, recovers) = (self.ranks(), &self.shared.tables, number.1 == RECOVERY);
        let mut open = tables.state.lock();
        let table = open.entry(number).or_insert_with(|| Table { rows: vec![None; ranks], taken: 0 });
        table.rows[self.rank] = Some(bytes);
        if recovers && table.rows.iter().all(Option::is_some) {
            self.shared.empty();
            open.retain(|other, _| *other == number);
        }
        drop(open);
        tables.changed.notify_all();
        let missing = |open: &BTreeMap<_, Table>, rank: usize| open[&number].rows[rank].is_none();
        self.wait(tables, until, recovers, missing, |open| {
            let table = open.get_mut(&number)?;
            let rows = table.rows.iter().cloned().collect::<Option<_>>()?;
            table.taken += 1;
            if table.taken == ranks {
                open.remove(&number);
            }
            Some(rows)
        })
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
        payload.map(|_, tensor| tensor.to_device(&self.device))
    }

    fn set_activity(&mut self, activity: Activity) {
        self.shared.activity_changes.fetch_add(1, Ordering::Relaxed);
        self.doing().set(activity);
    }

    fn send(&mut self, to: usize, message: Message, _: Instant) -> Result<(), LinkError> {
        self.shared.refuse_failed(false)?;
        let inbox = self.shared.inboxes.get(to).ok_or_else(|| self.missing(to))?;
        let payload = message.payload.unshared();
        inbox.state.lock()[self.rank].push_back(Message { payload, ..message });
        inbox.changed.notify_all();
        Ok(())
    }

    fn receive(&mut self, from: usize, header: Header, deadline: Instant) -> Result<Payload, LinkError> {
        if from >= self.ranks() {
            return Err(self.missing(from));
        }
        let inbox = &self.shared.inboxes[self.rank];
        let message =
            self.wait(inbox, (&header, deadline), false, |_, rank| rank == from, |queues| queues[from].pop_front())?;
        LinkError::check_order(self.rank, from, header, message.header)?;
        Ok(self.to_device(message.payload))
    }

    fn probe(&mut self, from: &[usize], deadline: Instant) -> Result<Option<(usize, Header)>, LinkError> {
        let since = Instant::now();
        let inbox = &self.shared.inboxes[self.rank];
        let mut queues = inbox.state.lock();
        loop {
            let next = |&rank: &usize| Some((rank, queues.get(rank)?.front()?.header));
            if let Some(next) = from.iter().find_map(next) {
                return Ok(Some(next));
            }
            self.shared.refuse_failed(false)?;
            if from.iter().any(|&rank| self.shared.has_left(rank)) {
                return Ok(None);
            }
            let Some(left) = remaining(deadline) else {
                if deadline > since {
                    self.doing().found_nothing(since);
                }
                return Ok(None);
            };
            inbox.changed.wait_for(&mut queues, left);
        }
    }

    fn all_gather(&mut self, bytes: Vec<u8>, deadline: Instant) -> Result<Vec<Vec<u8>>, LinkError> {
        self.shared.refuse_failed(false)?;
        let rows = self.meet(self.next_gather, bytes, (&"its part of a gather", deadline))?;
        self.next_gather.1 += 1;
        Ok(rows)
    }

    fn abort(&mut self, message: String) {
        self.shared.abort(Failure { rank: self.rank, message });
    }

    fn interrupt(&mut self, message: String) {
        self.shared.interrupt(Failure { rank: self.rank, message });
    }

    fn recover(&mut self, deadline: Instant) -> Result<(), LinkError> {
        let (recoveries, _) = self.next_gather;
        self.meet((recoveries, RECOVERY), Vec::new(), (&AGREEMENT, deadline))?;
        self.next_gather = (recoveries + 1, 0);
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

/// Runs a rank on a thread for each number, and returns what they give.
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
pub(crate) fn on_threads<T: Send>(ranks: usize, run: impl Fn(usize, super::SharedLink) -> T + Sync) -> Vec<T> {
    let threads = Threads::new(ranks);
    std::thread::scope(|scope| {
        let (threads, run) = (&threads, &run);
        let link = |rank| super::SharedLink::new(Box::new(threads.link(rank, Device::flex())));
        let start = |rank| scope.spawn(move || run(rank, link(rank)));
        let started: Vec<_> = (0..ranks).map(start).collect();
        started.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Time left until a deadline; `None` once it has passed.
fn remaining(deadline: Instant) -> Option<Duration> {
    deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
}
