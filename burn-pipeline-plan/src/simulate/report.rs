//! The result of a simulation.
//!
//! There are two bubble rates: over the *span* (the longest time between the first and the last computation of a rank)
//! and over the *makespan* (the whole step, which a synchronous optimizer waits for). Each is the share of that time in
//! which a rank does not compute, on average. With stages of equal cost it is `(cost - m(F+I+W)) / cost`, the
//! definition of the Zero Bubble paper (Qi et al. 2023, arXiv:2401.10241).

use super::memory::MemoryPoint;
use crate::named::named;
use crate::trace::{Event, Track};

named! {
    /// Why a rank idles.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub enum IdleCause, name {
        /// Its first computation has not started yet.
        WarmUp => "warm-up",
        /// The input of its next forward is still being computed.
        Input => "input",
        /// The gradient for its next backward is still being computed.
        Gradient => "gradient",
        /// Its next input has been computed but has not arrived, or a peer is not ready to receive.
        Transfer => "transfer",
        /// Its last computation is over, but the step is not.
        CoolDown => "cool-down",
        /// All inputs are there, but the computation has not started. In measured steps only
        /// ([`idle_periods`](super::idle_periods)).
        Overhead => "overhead",
    }
}

impl IdleCause {
    /// The causes of a simulated step.
    pub const SIMULATED: [IdleCause; 5] =
        [IdleCause::WarmUp, IdleCause::Input, IdleCause::Gradient, IdleCause::Transfer, IdleCause::CoolDown];

    /// The cause while a forward's input, or a backward's gradient, is still being computed.
    pub(super) fn of_value(forward: bool) -> Self {
        if forward { IdleCause::Input } else { IdleCause::Gradient }
    }
}

/// A period in which a rank idles, and why.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct IdlePeriod {
    /// Its start, in seconds from the start of the step.
    pub start: f64,
    /// Its end, in seconds from the start of the step.
    pub end: f64,
    /// The cause.
    pub cause: IdleCause,
}

/// The report of one rank of a simulated step.
#[derive(Clone, PartialEq, Debug)]
pub struct RankReport {
    /// Start of its first computation, in seconds from the start of the step.
    pub start: f64,
    /// End of its last computation, in seconds from the start of the step.
    pub end: f64,
    /// Seconds of computation.
    pub busy: f64,
    /// Seconds between `start` and `end` in which a transfer or a collective blocks it.
    pub occupied: f64,
    /// Its idle periods, in order of time.
    pub idle: Vec<IdlePeriod>,
    /// The most activations live at once, in rank-microbatches: one chunk's activation of one microbatch counts `1/v`
    /// from its `F` to its `W` (or `B`).
    pub peak_activations: f64,
    /// Bytes of parameters that it holds during the whole step.
    pub weight_bytes: f64,
    /// Bytes of optimizer state that it holds during the whole step.
    pub optimizer_bytes: f64,
    /// The most bytes held at once, parameters and optimizer state included.
    pub peak_bytes: f64,
    /// Memory over time, without parameters and optimizer state.
    pub memory: Vec<MemoryPoint>,
}

impl RankReport {
    /// Idle seconds of the given cause.
    pub fn idle_of(&self, cause: IdleCause) -> f64 {
        // `sum` of an empty iterator would be -0.
        self.idle.iter().filter(|idle| idle.cause == cause).fold(0.0, |sum, idle| sum + idle.end - idle.start)
    }
}

/// The result of a simulated step.
#[derive(Clone, PartialEq, Debug)]
pub struct Simulation {
    /// Seconds of the whole step.
    pub makespan: f64,
    /// Seconds from the first to the last computation of a rank, for the rank with the longest such time.
    pub span: f64,
    /// Mean seconds of computation of a rank.
    pub work: f64,
    /// One report for each rank.
    pub ranks: Vec<RankReport>,
    /// Every action with its time, without idle slots.
    pub events: Vec<Event>,
}

impl Simulation {
    /// The share of the span in which a rank does not compute, on average.
    pub fn bubble_rate_span(&self) -> f64 {
        rate(self.span, self.work)
    }

    /// The share of the makespan in which a rank does not compute, on average.
    pub fn bubble_rate_makespan(&self) -> f64 {
        rate(self.makespan, self.work)
    }

    /// The most activations live at once on any rank, in rank-microbatches.
    pub fn peak_activations(&self) -> f64 {
        self.ranks.iter().map(|rank| rank.peak_activations).fold(0.0, f64::max)
    }

    /// The most bytes held at once on any rank, parameters and optimizer state included.
    pub fn peak_bytes(&self) -> f64 {
        self.ranks.iter().map(|rank| rank.peak_bytes).fold(0.0, f64::max)
    }

    /// The events as a track that [`crate::trace`] can draw.
    pub fn track(&self, name: impl Into<String>) -> Track {
        Track { name: name.into(), ranks: self.ranks.len(), events: self.events.clone() }
    }
}

/// `(cost - work) / cost`, or 0 for a step that takes no time.
fn rate(cost: f64, work: f64) -> f64 {
    if cost > 0.0 { (cost - work) / cost } else { 0.0 }
}
