//! What the planner is asked: a model, ranks, links, a cap, and what it may choose from.

use super::error::PlannerError;
use super::synthesis::Synthesis;
use crate::cost::{Layers, LinkCosts, PartitionError};
use crate::plan::PlacementKind;
use crate::simulate::SimulateOptions;

/// One way to cut the batch into microbatches, with what a layer costs for microbatches of that size.
#[derive(Clone, PartialEq, Debug)]
pub struct Workload {
    /// Microbatches a step.
    pub microbatches: usize,
    /// Costs for one of them.
    pub layers: Layers,
    /// Bytes of one microbatch's input, which the first stage keeps where it recomputes.
    pub input_bytes: f64,
}

impl Workload {
    /// Costs that were measured with microbatches of this size.
    pub fn new(microbatches: usize, layers: Layers) -> Self {
        Self { microbatches, layers, input_bytes: 0.0 }
    }

    /// The same batch cut into `microbatches`, with costs scaled to their size; of the seconds of each operation of a
    /// layer, `fixed` do not depend on the size (launches, say). Without them, more microbatches are always better.
    ///
    /// # Errors
    /// What [`Layers::scaled`] refuses.
    pub fn recut(&self, microbatches: usize, fixed: f64) -> Result<Self, PartitionError> {
        let factor = self.microbatches as f64 / microbatches as f64;
        let layers = self.layers.scaled(factor, fixed)?;
        Ok(Self { microbatches, layers, input_bytes: self.input_bytes * factor })
    }
}

/// How to cut layers into stages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Cut {
    /// As many layers in each stage; where there are as many layers as stages, as they are.
    Even,
    /// The busiest rank as little busy as can be.
    Optimal,
    /// The same under the memory cap, with activations held as 1F1B holds them. Nothing without a cap.
    Fitting,
}

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Cut::Even => "even",
            Cut::Optimal => "optimal",
            Cut::Fitting => "fitting",
        })
    }
}

/// Which stages run their forward again in the backward instead of keeping its activations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Recompute {
    /// None.
    Never,
    /// Those of ranks that do not fit without. Nothing without a cap.
    WhereNeeded,
    /// All.
    Everywhere,
}

impl std::fmt::Display for Recompute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Recompute::Never => "never",
            Recompute::WhereNeeded => "where needed",
            Recompute::Everywhere => "everywhere",
        })
    }
}

/// The question.
#[derive(Clone, PartialEq, Debug)]
pub struct Request {
    /// Ways to cut the batch, at least one.
    pub workloads: Vec<Workload>,
    /// Ranks (devices).
    pub ranks: usize,
    /// The network between them.
    pub links: LinkCosts,
    /// Bytes that a rank may hold: parameters with what belongs to them, activations, messages.
    pub cap: Option<f64>,
    /// Bytes held for each byte of parameters: 2 with gradients, 4 with Adam's moments.
    pub state_factor: f64,
    /// Stages a rank to try.
    pub chunks: Vec<usize>,
    /// Kinds of placement to keep to; without it, all are tried.
    pub placements: Option<Vec<PlacementKind>>,
    /// Cuts to try.
    pub cuts: Vec<Cut>,
    /// Recomputation to try.
    pub recompute: Vec<Recompute>,
    /// Passes to try.
    pub passes: Vec<super::PassChoice>,
    /// Try a schedule made for the profile; none to keep to the catalogue.
    pub synthesis: Option<Synthesis>,
    /// Try not to pipeline: one device, and one replica of the model a rank.
    pub unpipelined: bool,
    /// How plans are simulated, and for which transport they are checked.
    pub simulate: SimulateOptions,
}

impl Request {
    /// Everything is tried, with 1, 2 and 4 chunks a rank.
    pub fn new(workloads: Vec<Workload>, ranks: usize, links: LinkCosts) -> Self {
        Self {
            workloads,
            ranks,
            links,
            cap: None,
            state_factor: 2.0,
            chunks: vec![1, 2, 4],
            placements: None,
            cuts: vec![Cut::Even, Cut::Optimal, Cut::Fitting],
            recompute: vec![Recompute::Never, Recompute::WhereNeeded, Recompute::Everywhere],
            passes: super::PassChoice::ALL.to_vec(),
            synthesis: Some(Synthesis::default()),
            unpipelined: true,
            simulate: SimulateOptions::default(),
        }
    }

    /// The same under a cap.
    pub fn with_cap(self, cap: f64) -> Self {
        Self { cap: Some(cap), ..self }
    }

    /// Refuses questions that have no answer.
    pub(super) fn check(&self) -> Result<(), PlannerError> {
        let amount = |field, value: f64| {
            let sound = value.is_finite() && value >= 0.0;
            if sound { Ok(()) } else { Err(PlannerError::Amount { field, value: value.to_string() }) }
        };
        if self.workloads.is_empty() {
            return Err(PlannerError::NoWorkload);
        }
        if self.ranks == 0 || self.ranks > usize::from(u16::MAX) {
            return Err(PlannerError::Ranks { ranks: self.ranks });
        }
        if self.workloads.iter().any(|workload| workload.microbatches == 0) {
            return Err(PlannerError::NoMicrobatch);
        }
        amount("cap", self.cap.unwrap_or(0.0))?;
        amount("state_factor", self.state_factor)?;
        self.workloads.iter().try_for_each(|workload| amount("input_bytes", workload.input_bytes))
    }
}
