//! The event type of predictions and measurements.

use crate::plan::Action;

/// One action on one rank, with its time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Event {
    /// The rank that ran it.
    pub rank: usize,
    /// The action.
    pub action: Action,
    /// Seconds from the start of the step.
    pub start: f64,
    /// Seconds from the start of the step, not before `start`.
    pub end: f64,
}

/// The events of one step on all ranks, under a name such as `predicted` or `measured`.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Track {
    /// The title in drawings.
    pub name: String,
    /// Number of ranks; ranks without events are drawn empty.
    pub ranks: usize,
    /// Events in any order.
    pub events: Vec<Event>,
}

impl Track {
    /// The end of the last event, 0 without any.
    pub fn end(&self) -> f64 {
        self.events.iter().map(|e| e.end).fold(0.0, f64::max)
    }

    /// The number of ranks to draw: `ranks`, or more if an event names a higher rank.
    pub fn rows(&self) -> usize {
        self.events.iter().map(|e| e.rank + 1).fold(self.ranks, usize::max)
    }
}
