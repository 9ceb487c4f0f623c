//! Runs a group: its sends and receives concurrently, then its sums.
//!
//! 1. Each end of a transfer posts its number, count and type, and waits for the other end's post. Transfers from
//!    one rank to another run in order.
//! 2. Both ends compare the posts. Then the bytes go through the pair's chunk.
//! 3. An end is done when the other end has seen its post and the chunk is empty again: a send waits for its
//!    receive.

use crate::board::Board;
use crate::broken::broken;
use crate::communicator::Communicator;
use crate::faults::{faults, is_over};
use crate::group::Elements;
use crate::room::{CHUNK, Pair, Post};
use crate::sums::Sum;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

const PAUSE: Duration = Duration::from_micros(20);

/// One end of a transfer.
pub struct Transfer {
    sends: bool,
    peer: usize,
    number: u64,
    elements: Elements,
    posted: bool,
    met: bool,
    moved: usize,
}

/// The result of one step of an operation.
#[derive(PartialEq, Eq)]
pub enum Step {
    Moved,
    /// The other end has not arrived yet.
    Missing,
    /// Waiting for the other end.
    Waits,
    Done,
}

impl Transfer {
    pub fn new(sends: bool, peer: usize, number: u64, elements: Elements) -> Self {
        Self { sends, peer, number, elements, posted: false, met: false, moved: 0 }
    }

    fn pair(&self, communicator: &Communicator) -> &'static Pair {
        let (from, to) = if self.sends { (communicator.rank, self.peer) } else { (self.peer, communicator.rank) };
        &communicator.room.pairs[from][to]
    }

    /// Both ends, this one first.
    fn ends(&self, communicator: &Communicator) -> (&'static Post, &'static Post) {
        let pair = self.pair(communicator);
        if self.sends { (&pair.sender, &pair.receiver) } else { (&pair.receiver, &pair.sender) }
    }

    /// Checks that a higher rank has queued its end.
    pub fn check_turn(&self, communicator: &Communicator) {
        let (own, other) = self.ends(communicator);
        own.queued.store(self.number, Ordering::Release);
        if self.peer > communicator.rank && other.queued.load(Ordering::Acquire) < self.number {
            broken("the higher rank launches first", format!("transfer {} with rank {}", self.number, self.peer));
        }
    }

    fn step(&mut self, communicator: &Communicator) -> Step {
        let pair = self.pair(communicator);
        let (own, other) = self.ends(communicator);
        let (count, kind) = (self.elements.count, self.elements.kind);
        if !self.posted {
            own.write(self.number, count, kind);
            self.posted = true;
        }
        if !self.met {
            let Some(there) = other.read(self.number) else { return Step::Missing };
            if there != (count, kind) {
                let (way, peer) =
                    (if self.sends { "sends to" } else { "receives from" }, communicator.world[self.peer]);
                let (me, other) = (communicator.world[communicator.rank], there);
                let what = format!("rank {me} {way} rank {peer} {count} of type {kind}, the other end has {other:?}");
                broken("both ends of a transfer name the same count and type", what);
            }
            self.met = true;
            own.seen.store(self.number, Ordering::Release);
            return Step::Moved;
        }
        let left = self.elements.bytes() - self.moved;
        let filled = pair.chunk.filled.load(Ordering::Acquire) as usize;
        let device = (self.elements.address + self.moved as u64) as *mut u8;
        match (self.sends, left, filled) {
            (true, 1.., 0) => {
                let bytes = left.min(CHUNK);
                // SAFETY: the memory was checked when the group was queued, and the empty chunk belongs to the
                // sender.
                unsafe { pair.chunk.bytes().copy_from(device, bytes) };
                self.moved += bytes;
                pair.chunk.filled.store(bytes as u64, Ordering::Release);
                Step::Moved
            }
            (false, 1.., 1..) => {
                // SAFETY: as above; the filled chunk belongs to the receiver, and both ends have named the same
                // count.
                unsafe { device.copy_from(pair.chunk.bytes(), filled) };
                self.moved += filled;
                pair.chunk.filled.store(0, Ordering::Release);
                Step::Moved
            }
            (_, 0, 0) if other.seen.load(Ordering::Acquire) >= self.number => Step::Done,
            _ => Step::Waits,
        }
    }
}

/// Runs a group until it is done, or its communicator is aborted.
pub fn run(communicator: &Communicator, transfers: Vec<Transfer>, sums: Vec<Sum>) {
    let mut board = Board::begin(communicator);
    let mut lanes: BTreeMap<(bool, usize), Vec<Transfer>> = BTreeMap::new();
    for transfer in transfers.into_iter().rev() {
        lanes.entry((transfer.sends, transfer.peer)).or_default().push(transfer);
    }
    until_done(communicator, &mut board, || {
        let (mut moved, mut missing) = (false, 0);
        for ((_, peer), lane) in &mut lanes {
            while let Some(first) = lane.last_mut() {
                match first.step(communicator) {
                    Step::Done => drop(lane.pop()),
                    Step::Moved => {}
                    Step::Missing => {
                        missing |= 1 << communicator.world[*peer];
                        break;
                    }
                    Step::Waits => break,
                }
                moved = true;
            }
        }
        (moved, missing, lanes.values().all(Vec::is_empty))
    });
    for mut sum in sums {
        until_done(communicator, &mut board, || {
            let (step, missing) = sum.step(communicator);
            (step == Step::Moved, missing, step == Step::Done)
        });
    }
    board.end();
}

/// Repeats `step` until all is done. `step` returns whether something progressed, which ranks are missing, and
/// whether all is done.
fn until_done(communicator: &Communicator, board: &mut Board, mut step: impl FnMut() -> (bool, u64, bool)) {
    loop {
        if is_over(faults().stuck_after) {
            std::thread::sleep(PAUSE);
            continue;
        }
        if communicator.aborted.load(Ordering::Acquire) {
            return;
        }
        if is_over(faults().silent_after) {
            std::thread::sleep(PAUSE);
            continue;
        }
        let (moved, missing, done) = step();
        if done {
            return;
        }
        if moved {
            board.moved();
        } else {
            board.look(missing);
            std::thread::sleep(PAUSE);
        }
    }
}
