//! The order of memory uses by vector clocks, which does not depend on when the uses happen to run.
//!
//! A clock holds a position for each stream: "after everything up to there". A stream's clock grows with what it
//! waits for, the host's with what it has waited for or queried. A job comes after everything that the host knew to
//! be over when it queued the job. (Lamport 1978; as a race detector: FastTrack, Flanagan and Freund 2009.)

use crate::broken::broken;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Positions in streams, by stream number.
#[derive(Clone, Default)]
pub struct Clock(BTreeMap<usize, u64>);

impl Clock {
    /// Merges another clock.
    pub fn join(&mut self, other: &Self) {
        other.0.iter().for_each(|(&stream, &position)| self.reach(stream, position));
    }

    /// Advances to a position of a stream.
    pub fn reach(&mut self, stream: usize, position: u64) {
        let known = self.0.entry(stream).or_default();
        *known = position.max(*known);
    }

    /// Returns true if the clock comes after that position.
    fn is_after(&self, stream: usize, position: u64) -> bool {
        self.0.get(&stream).is_some_and(|&known| known >= position)
    }
}

/// A use of memory.
#[derive(Clone)]
pub struct Use {
    pub range: Range<u64>,
    pub writes: bool,
    pub what: &'static str,
}

impl Use {
    /// A use that reads memory.
    pub fn read(what: &'static str, address: u64, bytes: usize) -> Self {
        Self { range: address..address + bytes as u64, writes: false, what }
    }

    /// A use that writes memory.
    pub fn write(what: &'static str, address: u64, bytes: usize) -> Self {
        Self { writes: true, ..Self::read(what, address, bytes) }
    }

    pub fn meets(&self, range: &Range<u64>) -> bool {
        self.range.start < range.end && range.start < self.range.end
    }
}

struct Queued {
    used: Use,
    /// What the job comes after.
    clock: Arc<Clock>,
    stream: usize,
    position: u64,
    transfer: bool,
}

/// A kernel whose uses are not known yet.
struct Running {
    stream: usize,
    position: u64,
    clock: Arc<Clock>,
}

/// All uses that may still meet another one without an order.
#[derive(Default)]
pub struct Log {
    queued: Vec<Queued>,
    running: Vec<Running>,
}

impl Log {
    /// Checks a use against all others, and adds it. Neither may come without an order; which one was queued first
    /// does not matter, since the uses of kernels are entered late.
    pub fn enter(&mut self, used: Use, stream: usize, position: u64, transfer: bool, clock: &Arc<Clock>) {
        let early = self.queued.iter().find(|other| {
            let conflict = (other.used.writes || used.writes) && other.used.meets(&used.range);
            conflict
                && (other.stream, other.position) != (stream, position)
                && !clock.is_after(other.stream, other.position)
                && !other.clock.is_after(stream, position)
        });
        if let Some(Queued { used: earlier, stream: other, .. }) = early {
            let (now, before) = (used.what, earlier.what);
            broken(
                "memory is used before its event",
                format!("{now} on stream {stream} has no order with {before} on stream {other}"),
            );
        }
        self.drop_covered(&used, stream, position);
        self.queued.push(Queued { used, clock: clock.clone(), stream, position, transfer });
    }

    /// Removes earlier uses of the same stream that a new one covers: what comes after the new one comes after them.
    /// A kernel of another stream that may still run must come after them, since the new use may come after it.
    fn drop_covered(&mut self, used: &Use, stream: usize, position: u64) {
        let Self { queued, running } = self;
        queued.retain(|job| {
            let within = used.range.start <= job.used.range.start && job.used.range.end <= used.range.end;
            let covered = within && (used.writes || !job.used.writes) && !job.transfer;
            let over = |kernel: &Running| kernel.stream == stream || kernel.clock.is_after(stream, job.position);
            !(covered && job.stream == stream && job.position <= position && running.iter().all(over))
        });
    }

    /// A kernel is queued; [`Self::ended`] enters what it has used.
    pub fn begin(&mut self, stream: usize, position: u64, clock: &Arc<Clock>) {
        self.running.push(Running { stream, position, clock: clock.clone() });
    }

    /// Enters what a kernel has used.
    pub fn ended(&mut self, uses: Vec<Use>, stream: usize, position: u64) {
        let place = self.running.iter().position(|kernel| (kernel.stream, kernel.position) == (stream, position));
        let Running { clock, .. } = self.running.swap_remove(place.unwrap());
        uses.into_iter().for_each(|used| self.enter(used, stream, position, false, &clock));
    }

    /// Removes the uses that the host knows to be over, and that come before all kernels that may still run.
    pub fn forget(&mut self, known: &Clock) {
        let Self { queued, running } = self;
        queued.retain(|job| {
            let before = |clock: &Clock| clock.is_after(job.stream, job.position);
            !before(known) || running.iter().any(|kernel| !before(&kernel.clock))
        });
    }

    /// Checks that no transfer may still use memory that is being freed, and removes its uses.
    pub fn free(&mut self, range: &Range<u64>) {
        let mut using = self.queued.iter().filter(|job| job.used.meets(range));
        if let Some(job) = using.find(|job| job.transfer) {
            broken("memory is freed while in flight", format!("{} on stream {}", job.used.what, job.stream));
        }
        self.queued.retain(|job| !job.used.meets(range));
    }
}
