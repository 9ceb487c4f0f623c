//! Detects queues of several processes that wait for each other in a cycle.
//!
//! 1. A rank that runs a group publishes the group's number and the ranks it still waits for.
//! 2. A rank that waits for a rank running another group must wait for that group to end. A set of ranks that each
//!    wait for a member of the set is deadlocked.
//! 3. A rank that runs several groups, in several streams, waits for nobody: another group may progress.
//! 4. Published values may be stale. So the set counts only if all its members have looked again since, publish the
//!    same, and none of their groups has progressed: a rank that progressed may wait for the same rank again for
//!    another reason.

use crate::broken::broken;
use crate::communicator::Communicator;
use crate::room::{RANKS, Room};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time between two looks at the others.
const BETWEEN: Duration = Duration::from_millis(50);

/// The number of groups that this process runs.
static RUNNING: AtomicU64 = AtomicU64::new(0);

/// What this rank publishes while it runs a group.
pub struct Board {
    room: &'static Room,
    me: usize,
    last: Instant,
    before: [Shown; RANKS],
}

#[derive(Clone, Copy, Default)]
struct Shown {
    group: u64,
    missing: u64,
    looks: u64,
    moves: u64,
}

impl Board {
    pub fn begin(communicator: &Communicator) -> Self {
        static GROUPS: AtomicU64 = AtomicU64::new(0);
        let (room, me) = (communicator.root, communicator.world[communicator.rank]);
        RUNNING.fetch_add(1, Ordering::AcqRel);
        room.members[me].missing.store(0, Ordering::Release);
        room.members[me].group.store(GROUPS.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Release);
        Self { room, me, last: Instant::now(), before: Default::default() }
    }

    pub fn end(self) {
        self.room.members[self.me].group.store(0, Ordering::Release);
        RUNNING.fetch_sub(1, Ordering::AcqRel);
    }

    /// Publishes that the group has progressed.
    pub fn moved(&self) {
        self.room.members[self.me].moves.fetch_add(1, Ordering::AcqRel);
    }

    /// Publishes which ranks are missing now. Ends the process if they are deadlocked.
    pub fn look(&mut self, missing: u64) {
        let own = &self.room.members[self.me];
        let alone = RUNNING.load(Ordering::Acquire) == 1;
        own.missing.store(if alone { missing } else { 0 }, Ordering::Release);
        own.looks.fetch_add(1, Ordering::AcqRel);
        if self.last.elapsed() < BETWEEN {
            return;
        }
        let shown = self.read();
        let cycle = stuck(&shown);
        let same = |rank: usize| {
            let (now, before) = (shown[rank], self.before[rank]);
            let unchanged = (now.group, now.missing, now.moves) == (before.group, before.missing, before.moves);
            unchanged && now.looks > before.looks + 1
        };
        let holds = cycle & (1 << self.me) != 0 && (0..RANKS).filter(|rank| cycle & (1 << rank) != 0).all(same);
        if holds {
            let say = |rank: usize| format!("rank {rank} waits for {:?}", ranks(shown[rank].missing));
            let who: Vec<String> = ranks(cycle).into_iter().map(say).collect();
            broken("queues do not wait for each other", who.join(", "));
        }
        (self.last, self.before) = (Instant::now(), shown);
    }

    fn read(&self) -> [Shown; RANKS] {
        std::array::from_fn(|rank| {
            let member = &self.room.members[rank];
            let fields = [&member.group, &member.missing, &member.looks, &member.moves];
            let [group, missing, looks, moves] = fields.map(|field| field.load(Ordering::Acquire));
            Shown { group, missing, looks, moves }
        })
    }
}

/// The largest set of ranks that run a group and wait for a member of the set.
fn stuck(shown: &[Shown; RANKS]) -> u64 {
    let mut set = (0..RANKS).filter(|&rank| shown[rank].group > 0).fold(0, |set, rank| set | 1 << rank);
    loop {
        let waits = |rank: &usize| set & (1 << rank) != 0 && shown[*rank].missing & set != 0;
        let left = (0..RANKS).filter(waits).fold(0, |set, rank| set | 1 << rank);
        if left == set {
            return set;
        }
        set = left;
    }
}

fn ranks(set: u64) -> Vec<usize> {
    (0..RANKS).filter(|rank| set & (1 << rank) != 0).collect()
}
