//! The order of memory uses by vector clocks, which does not depend on when the uses happen to run.
//!
//! A clock holds a position for each stream: "after everything up to there". A stream's clock grows with what it
//! waits for, the host's with what it has waited for or queried. A job comes after everything that the host knew to
//! be over when it queued the job. (Lamport 1978; as a race detector: FastTrack, Flanagan and Freund 2009.)

use crate::broken::broken;
use std::collections::BTreeMap;
use std::ops::Range;

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
    stream: usize,
    position: u64,
    transfer: bool,
}

/// All uses that are not known to be over.
#[derive(Default)]
pub struct Log(Vec<Queued>);

impl Log {
    /// Checks a use against all earlier ones, and adds it.
    pub fn enter(&mut self, used: Use, stream: usize, position: u64, transfer: bool, clock: &Clock) {
        let early = self.0.iter().find(|earlier| {
            let conflict = (earlier.used.writes || used.writes) && earlier.used.meets(&used.range);
            conflict
                && (earlier.stream, earlier.position) != (stream, position)
                && !clock.is_after(earlier.stream, earlier.position)
        });
        if let Some(Queued { used: earlier, stream: other, .. }) = early {
            let (now, before) = (used.what, earlier.what);
            broken(
                "memory is used before its event",
                format!("{now} on stream {stream} has no order with {before} on stream {other}"),
            );
        }
        self.0.push(Queued { used, stream, position, transfer });
    }

    /// Removes the uses that the host knows to be over.
    pub fn forget(&mut self, known: &Clock) {
        self.0.retain(|queued| !known.is_after(queued.stream, queued.position));
    }

    /// Checks that no transfer may still use memory that is being freed, and removes its uses.
    pub fn free(&mut self, range: &Range<u64>) {
        if let Some(queued) = self.0.iter().find(|queued| queued.transfer && queued.used.meets(range)) {
            broken("memory is freed while in flight", format!("{} on stream {}", queued.used.what, queued.stream));
        }
        self.0.retain(|queued| !queued.used.meets(range));
    }
}
