//! What a simulation says.
//!
//! Two ways to count a bubble, both given: over the *span* (the longest time that a rank has between its first and
//! its last computation) and over the *makespan* (the whole step, which is what a synchronous optimizer waits for).
//! Each rate is the share of that time in which a rank, on average, does not compute; with stages of equal cost that
//! is `(cost - m(F+I+W)) / cost`, the definition of the Zero Bubble paper.

use super::memory::MemoryPoint;
use crate::trace::{Event, Track};

/// Why a rank does nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IdleCause {
    /// Its first computation has not started yet.
    WarmUp,
    /// The input of its next forward is still being computed.
    Input,
    /// The gradient for its next backward is still being computed.
    Gradient,
    /// What it needs is computed, but on its way (or a peer is not ready to take what it sends).
    Transfer,
    /// Its last computation is over, the step is not.
    CoolDown,
}

impl IdleCause {
    /// All causes.
    pub const ALL: [IdleCause; 5] =
        [IdleCause::WarmUp, IdleCause::Input, IdleCause::Gradient, IdleCause::Transfer, IdleCause::CoolDown];
}

impl std::fmt::Display for IdleCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            IdleCause::WarmUp => "warm-up",
            IdleCause::Input => "input",
            IdleCause::Gradient => "gradient",
            IdleCause::Transfer => "transfer",
            IdleCause::CoolDown => "cool-down",
        })
    }
}

/// A time in which a rank does nothing, and why.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct IdlePeriod {
    /// Seconds from the start of the step.
    pub start: f64,
    /// Seconds from the start of the step.
    pub end: f64,
    /// What it waits for.
    pub cause: IdleCause,
}

/// What one rank does in a step.
#[derive(Clone, PartialEq, Debug)]
pub struct RankReport {
    /// Start of its first computation, in seconds from the start of the step.
    pub start: f64,
    /// End of its last computation.
    pub end: f64,
    /// Seconds in which it computes.
    pub busy: f64,
    /// Seconds in which a transfer or a collective keeps it from computing.
    pub occupied: f64,
    /// Every time in which it does nothing, in order of time.
    pub idle: Vec<IdlePeriod>,
    /// The most activations live at once, in rank-microbatches (a chunk is `1/v`), released at `W`.
    pub peak_activations: f64,
    /// Bytes of the parameters that it holds all the time.
    pub weight_bytes: f64,
    /// Bytes of optimizer state that it holds all the time.
    pub optimizer_bytes: f64,
    /// The most bytes held at once, parameters and optimizer state included.
    pub peak_bytes: f64,
    /// What it holds beside these, over time.
    pub memory: Vec<MemoryPoint>,
}

impl RankReport {
    /// Idle seconds of one cause.
    pub fn idle_of(&self, cause: IdleCause) -> f64 {
        // Not `sum`, which gives -0 for nothing.
        self.idle.iter().filter(|idle| idle.cause == cause).fold(0.0, |sum, idle| sum + idle.end - idle.start)
    }
}

/// The outcome of a simulated step.
#[derive(Clone, PartialEq, Debug)]
pub struct Simulation {
    /// Seconds of the whole step.
    pub makespan: f64,
    /// Seconds from first to last computation, on the rank where that is longest.
    pub span: f64,
    /// Compute seconds of a rank, on average.
    pub work: f64,
    /// One report a rank.
    pub ranks: Vec<RankReport>,
    /// Every action with its time, idle slots left out.
    pub events: Vec<Event>,
}

impl Simulation {
    /// The share of the span that is not work.
    pub fn bubble_rate_span(&self) -> f64 {
        rate(self.span, self.work)
    }

    /// The share of the makespan that is not work.
    pub fn bubble_rate_makespan(&self) -> f64 {
        rate(self.makespan, self.work)
    }

    /// The most activations live at once on any rank, in rank-microbatches, released at `W`.
    pub fn peak_activations(&self) -> f64 {
        self.ranks.iter().map(|rank| rank.peak_activations).fold(0.0, f64::max)
    }

    /// The most bytes held at once on any rank, parameters included.
    pub fn peak_bytes(&self) -> f64 {
        self.ranks.iter().map(|rank| rank.peak_bytes).fold(0.0, f64::max)
    }

    /// The events as a track to draw.
    pub fn track(&self, name: impl Into<String>) -> Track {
        Track { name: name.into(), ranks: self.ranks.len(), events: self.events.clone() }
    }
}

/// `(cost - work) / cost`, and 0 for a step that takes no time.
fn rate(cost: f64, work: f64) -> f64 {
    if cost > 0.0 { (cost - work) / cost } else { 0.0 }
}
