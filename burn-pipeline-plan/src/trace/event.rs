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
    /// The number of ranks; ranks without events are drawn empty.
    pub ranks: usize,
    /// Events in any order.
    pub events: Vec<Event>,
}

impl Track {
    /// A track of rows of actions, one row per rank, in which each cell takes one second. The rows may come from a
    /// plan, or from [`unit_steps()`](crate::simulate::unit_steps()).
    ///
    /// ```
    /// use burn_pipeline_plan::{plan::Plan, simulate::unit_steps, trace::Track};
    /// let plan = Plan::from_csv("two ranks", "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n")?;
    /// let track = Track::of_steps("two ranks", &unit_steps(&plan)?);
    /// assert_eq!((track.events.len(), track.end()), (8, 6.0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of_steps(name: impl Into<String>, rows: &[Vec<Action>]) -> Self {
        let cells = rows.iter().enumerate().flat_map(|(rank, row)| row.iter().enumerate().map(move |at| (rank, at)));
        let event = |(rank, (step, &action)): (usize, (usize, &Action))| {
            let start = step as f64;
            (!action.is_idle()).then_some(Event { rank, action, start, end: start + 1.0 })
        };
        let events = cells.filter_map(event).collect();
        Self { name: name.into(), ranks: rows.len(), events }
    }

    /// The end of the last event; 0 without events.
    pub fn end(&self) -> f64 {
        self.events.iter().map(|e| e.end).fold(0.0, f64::max)
    }

    /// The number of ranks to draw: `ranks`, or more if an event names a higher rank.
    pub fn rows(&self) -> usize {
        self.events.iter().map(|e| e.rank + 1).fold(self.ranks, usize::max)
    }
}
