//! Communicators: their members, and the state of their last call.
//!
//! 1. A call that involves other ranks (joining, splitting, finalising) returns at once; a thread waits for the
//!    others, and [`Communicator::poll`] reports when it is done.
//! 2. A group's call is done when it is polled after a short time: a caller that does not poll would use a queue
//!    that does not contain the group yet.
//! 3. Until then, only polling and aborting are allowed.

use crate::broken::broken;
use crate::faults::{faults, is_over};
use crate::queue::device;
use crate::room::{RANKS, Room, SPLITS};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

pub const SUCCESS: i32 = 0;
pub const SYSTEM_ERROR: i32 = 2;
pub const IN_PROGRESS: i32 = 7;

/// The time until a group is in the queue.
const LAUNCH: Duration = Duration::from_micros(200);
const PAUSE: Duration = Duration::from_micros(50);

/// The state of a communicator's last call.
enum State {
    Settled,
    /// A thread works on it.
    Waits,
    /// A group will be in a stream's queue at this time.
    Launches(Instant, usize),
}

pub struct Communicator {
    pub handle: usize,
    name: String,
    pub room: &'static Room,
    /// The room of the root communicator, for `board.rs`.
    pub root: &'static Room,
    pub rank: usize,
    /// Its members as ranks of the root communicator.
    pub world: Vec<usize>,
    state: Mutex<State>,
    splits: AtomicUsize,
    pub aborted: AtomicBool,
    finalized: AtomicBool,
    /// The number of its groups that have not finished.
    pub running: AtomicUsize,
    /// The number of transfers to and from each member, and of sums, so far.
    pub counts: Mutex<Counts>,
}

#[derive(Default)]
pub struct Counts {
    pub sent: [u64; RANKS],
    pub received: [u64; RANKS],
    pub sums: u64,
}

static ALIVE: LazyLock<Mutex<HashMap<usize, Arc<Communicator>>>> = LazyLock::new(Mutex::default);

/// Looks up a communicator by its handle.
pub fn alive(handle: usize) -> Arc<Communicator> {
    let found = ALIVE.lock().unwrap().get(&handle).cloned();
    found.unwrap_or_else(|| broken("a handle is not alive", format!("communicator {handle}")))
}

impl Communicator {
    /// Joins the ranks that have the same name.
    pub fn join(name: String, rank: usize, root: Option<&'static Room>, world: Vec<usize>) -> Arc<Self> {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let room = Room::open(&name);
        let handle = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let communicator = Arc::new(Self {
            handle,
            name,
            room,
            root: root.unwrap_or(room),
            rank,
            world,
            state: Mutex::new(State::Waits),
            splits: AtomicUsize::new(0),
            aborted: AtomicBool::new(false),
            finalized: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            counts: Mutex::default(),
        });
        ALIVE.lock().unwrap().insert(handle, communicator.clone());
        if room.members[rank].there.swap(1, Ordering::AcqRel) != 0 {
            broken("a rank joins once", format!("rank {rank} joins again"));
        }
        communicator.in_background(|this| {
            let all = || this.members().all(|member| room.members[member].there.load(Ordering::Acquire) > 0);
            this.wait_until(&all)
        });
        communicator
    }

    fn members(&self) -> std::ops::Range<usize> {
        0..self.world.len()
    }

    /// Waits for other ranks in a thread. The communicator settles when `body` returns true.
    fn in_background(self: &Arc<Self>, body: impl FnOnce(&Arc<Self>) -> bool + Send + 'static) {
        *self.state.lock().unwrap() = State::Waits;
        let this = self.clone();
        std::thread::spawn(move || {
            if body(&this) {
                *this.state.lock().unwrap() = State::Settled;
            }
        });
    }

    /// Returns false if it is aborted first.
    fn wait_until(&self, reached: &dyn Fn() -> bool) -> bool {
        while !reached() {
            if self.aborted.load(Ordering::Acquire) {
                return false;
            }
            std::thread::sleep(PAUSE);
        }
        true
    }

    /// Checks that a call is allowed now.
    pub fn check_settled(&self, what: &str) {
        if !matches!(*self.state.lock().unwrap(), State::Settled) {
            broken("a communicator has not settled", format!("{what} on communicator {}", self.handle));
        }
        if self.finalized.load(Ordering::Acquire) {
            broken("a communicator was finalised", format!("{what} on communicator {}", self.handle));
        }
    }

    /// A group is about to enter a stream.
    pub fn launches(&self, stream: usize) {
        *self.state.lock().unwrap() = State::Launches(Instant::now() + LAUNCH, stream);
        device().set_unsettled(stream, Some(self.handle));
    }

    /// The state of its last call.
    pub fn poll(&self) -> i32 {
        if is_over(faults().fails_after) {
            return SYSTEM_ERROR;
        }
        let mut state = self.state.lock().unwrap();
        match *state {
            State::Settled => SUCCESS,
            State::Launches(until, stream) if Instant::now() >= until => {
                *state = State::Settled;
                device().set_unsettled(stream, None);
                SUCCESS
            }
            State::Waits | State::Launches(..) => IN_PROGRESS,
        }
    }

    /// Splits off a communicator of the members with the same colour; none if the colour is negative. `made` gets
    /// it once all have called.
    pub fn split(self: &Arc<Self>, color: i32, key: i32, made: impl FnOnce(Option<Arc<Self>>) + Send + 'static) {
        self.check_settled("a split");
        let number = self.splits.fetch_add(1, Ordering::Relaxed);
        assert!(number < SPLITS, "a room has no place for more splits");
        let own = &self.room.members[self.rank].splits[number];
        own.color.store(color, Ordering::Relaxed);
        own.key.store(key, Ordering::Relaxed);
        own.there.store(1, Ordering::Release);
        self.in_background(move |this| {
            let of = |member: usize| &this.room.members[member].splits[number];
            if !this.wait_until(&|| this.members().all(|member| of(member).there.load(Ordering::Acquire) > 0)) {
                return false;
            }
            let mut chosen: Vec<usize> =
                this.members().filter(|&member| of(member).color.load(Ordering::Relaxed) == color).collect();
            chosen.sort_by_key(|&member| (of(member).key.load(Ordering::Relaxed), member));
            let rank = chosen.iter().position(|&member| member == this.rank).filter(|_| color >= 0);
            let world = chosen.iter().map(|&member| this.world[member]).collect();
            let name = format!("{}.{number}.{color}", this.name);
            made(rank.map(|rank| Self::join(name, rank, Some(this.root), world)));
            true
        });
    }

    /// Ends it with all members, once its queue is empty.
    pub fn finalize(self: &Arc<Self>) {
        self.check_settled("finalising");
        self.finalized.store(true, Ordering::Release);
        self.in_background(|this| {
            if !this.wait_until(&|| this.running.load(Ordering::Acquire) == 0) {
                return false;
            }
            this.room.members[this.rank].finalized.store(1, Ordering::Release);
            let ended = |member: usize| this.room.members[member].finalized.load(Ordering::Acquire) > 0;
            this.wait_until(&|| this.members().all(ended))
        });
    }

    /// Frees it after it was finalised.
    pub fn destroy(&self) {
        if !self.finalized.load(Ordering::Acquire) || self.poll() != SUCCESS {
            broken("a communicator is destroyed after it was finalised", format!("communicator {}", self.handle));
        }
        ALIVE.lock().unwrap().remove(&self.handle);
    }

    /// Aborts it and its queue, without the other members.
    pub fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        if let State::Launches(_, stream) = *self.state.lock().unwrap() {
            device().set_unsettled(stream, None);
        }
        ALIVE.lock().unwrap().remove(&self.handle);
    }
}
