//! The planner's request: a model, ranks, links, a memory cap, and the options to choose from.

use super::error::{PlannerError, refuse_long};
use super::passes::PassChoice;
use super::synthesis::Synthesis;
use crate::cost::{Layers, LinkCosts, PartitionError, VocabularyCost};
use crate::named::named;
use crate::pass::overlap::{OverlapOptions, OverlapPass};
use crate::plan::PlacementKind;
use crate::simulate::SimulateOptions;
use std::collections::BTreeSet;

/// The most forwards of a candidate over all stages: a plan and its simulation take about a kilobyte for each of them,
/// and several candidates are priced at once.
const MOST_FORWARDS: usize = 1 << 22;

/// A number of microbatches for the batch, with the costs of the layers for microbatches of that size.
#[derive(Clone, PartialEq, Debug)]
pub struct Workload {
    /// Microbatches per step.
    pub microbatches: usize,
    /// The layers with their costs for one microbatch.
    pub layers: Layers,
    /// Bytes of one microbatch's input. The first stage keeps them if it recomputes.
    pub input_bytes: f64,
    /// The costs of a rank's pieces of embedding and head if the vocabulary is parallel; `layers` are then those
    /// between embedding and head.
    pub vocabulary: Option<VocabularyCost>,
}

impl Workload {
    /// A workload of these layers, with an input of 0 bytes.
    pub fn new(microbatches: usize, layers: Layers) -> Self {
        Self { microbatches, layers, input_bytes: 0.0, vocabulary: None }
    }

    /// The same batch cut into another number of microbatches, with costs scaled to their size. The first `fixed`
    /// seconds of each operation of a layer (such as kernel launches) do not depend on the size. With 0, more
    /// microbatches always look better.
    ///
    /// # Errors
    /// Same as [`Layers::scaled`].
    pub fn recut(&self, microbatches: usize, fixed: f64) -> Result<Self, PartitionError> {
        let factor = self.microbatches as f64 / microbatches as f64;
        let layers = self.layers.scaled(factor, fixed)?;
        let vocabulary = self.vocabulary.map(|pieces| pieces.scaled(factor, fixed));
        Ok(Self { microbatches, layers, input_bytes: self.input_bytes * factor, vocabulary })
    }

    /// Refuses a plan of so many stages that its rows would be too long. With one stage, refuses too many microbatches.
    pub(super) fn check_length(&self, stages: usize) -> Result<(), PlannerError> {
        refuse_long("a candidate", stages.saturating_mul(self.microbatches), MOST_FORWARDS)
    }

    /// The same batch with the vocabulary parallel over this many ranks. The first layer is the embedding, the last one
    /// the head.
    ///
    /// # Errors
    /// Same as [`Layers::vocabulary_parallel`].
    pub fn vocabulary_parallel(&self, ranks: usize) -> Result<Self, PartitionError> {
        let (layers, pieces) = self.layers.vocabulary_parallel(ranks)?;
        let input_bytes = pieces.embedded_bytes;
        Ok(Self { layers, input_bytes, vocabulary: Some(pieces), ..*self })
    }
}

named! {
    /// How layers are cut into stages.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
    pub enum Cut, name {
        /// The same number of layers in each stage.
        Even => "even",
        /// The cut that minimises the load of the busiest rank, and other cuts with about the same load.
        Optimal => "optimal",
        /// As `Optimal`, under the memory cap, assuming the activations that 1F1B holds. Skipped if there is no cap.
        Fitting => "fitting",
    }
}

named! {
    /// Which stages recompute: a stage that recomputes runs its forward again in the backward instead of keeping its
    /// activations.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
    pub enum Recompute, name {
        /// No stage.
        Never => "never",
        /// The stages of ranks that would be above the cap. Skipped if there is no cap.
        WhereNeeded => "where needed",
        /// Every stage.
        Everywhere => "everywhere",
    }
}

/// The model and ranks to plan for, and the options to choose from.
#[derive(Clone, PartialEq, Debug)]
pub struct Request {
    /// Numbers of microbatches to choose from, at least one. Candidates with more than 4194304 forwards over all stages
    /// are dropped.
    pub workloads: Vec<Workload>,
    /// Ranks (devices).
    pub ranks: usize,
    /// The links between the ranks.
    pub links: LinkCosts,
    /// The most bytes that a rank may hold: parameters with gradients and optimizer state, activations, messages.
    /// `None` for no limit.
    pub cap: Option<f64>,
    /// Bytes held for each byte of parameters: 2 with gradients, 4 with Adam's moments as well. In half precision,
    /// parameters are masters and copies, and these numbers are 5/3 and 3.
    pub state_factor: f64,
    /// Numbers of stages per rank to try.
    pub chunks: Vec<usize>,
    /// Kinds of placement to try; `None` for all kinds.
    pub placements: Option<Vec<PlacementKind>>,
    /// Cuts to try.
    pub cuts: Vec<Cut>,
    /// Recomputation to try.
    pub recompute: Vec<Recompute>,
    /// Passes to try.
    pub passes: Vec<PassChoice>,
    /// The overlap passes of [`PassChoice::Overlap`], in order.
    pub overlap_passes: Vec<OverlapPass>,
    /// The budgets of the overlap passes. `overlap.simulate` is ignored in favour of `simulate` below.
    pub overlap: OverlapOptions,
    /// The effort for synthesised schedules; `None` to try only the schedules of the catalogue.
    pub synthesis: Option<Synthesis>,
    /// True to try plans without a pipeline too: one device, and data parallelism over all ranks.
    pub unpipelined: bool,
    /// Sizes of tensor-parallel groups to try in addition to 1. Either all stages have groups of one size, which must
    /// divide the number of ranks; or sizes differ, in a loop of one stage per pipeline rank, and of two neighbours'
    /// sizes one divides the other. [`Layer::summed_bytes`](crate::cost::Layer::summed_bytes) has the bytes that a
    /// group all-reduces.
    pub members: Vec<usize>,
    /// True to try plans with a parallel vocabulary too. The first layer is then the embedding, the last one the head.
    pub vocabulary_parallel: bool,
    /// How plans are simulated. They are checked for the same transport.
    pub simulate: SimulateOptions,
}

impl Request {
    /// A request that tries everything, with 1, 2 and 4 stages per rank and no memory cap.
    pub fn new(workloads: Vec<Workload>, ranks: usize, links: LinkCosts) -> Self {
        Self {
            workloads,
            ranks,
            links,
            cap: None,
            state_factor: 2.0,
            chunks: vec![1, 2, 4],
            placements: None,
            cuts: Cut::ALL.to_vec(),
            recompute: Recompute::ALL.to_vec(),
            passes: PassChoice::ALL.to_vec(),
            overlap_passes: OverlapPass::USUAL.to_vec(),
            overlap: OverlapOptions::default(),
            synthesis: Some(Synthesis::default()),
            unpipelined: true,
            members: Vec::new(),
            vocabulary_parallel: false,
            simulate: SimulateOptions::default(),
        }
    }

    /// The same request, with vocabulary-parallel plans. The first layer is the embedding, the last one the head.
    ///
    /// Together with [`Request::with_tensor_groups`], the planner prices such plans; `burn-pipeline` does not run them
    /// yet.
    pub fn with_vocabulary_parallel(self) -> Self {
        Self { vocabulary_parallel: true, ..self }
    }

    /// The same request, with tensor-parallel groups of these sizes.
    pub fn with_tensor_groups(self, members: Vec<usize>) -> Self {
        Self { members, ..self }
    }

    /// Splits the request into independent ones: for each group size, without and with a parallel vocabulary.
    ///
    /// # Errors
    /// Same as [`Layers::held_by`] and [`Layers::vocabulary_parallel`].
    pub(super) fn parts(&self) -> Result<Vec<(usize, Self)>, PartitionError> {
        let divides = |members: &usize| *members > 1 && self.ranks.is_multiple_of(*members);
        let sizes: BTreeSet<usize> = self.members.iter().copied().filter(divides).chain([1]).collect();
        let mut parts = Vec::new();
        for members in sizes {
            let held = self.held_by(members)?;
            let whole = held.workloads.iter().filter(|workload| workload.vocabulary.is_none());
            let parallel = whole.map(|workload| workload.vocabulary_parallel(held.ranks));
            let parallel = if self.vocabulary_parallel { parallel.collect::<Result<_, _>>()? } else { Vec::new() };
            let parallel = Self { workloads: parallel, ..held.clone() };
            parts.extend(
                [held, parallel].into_iter().filter(|part| !part.workloads.is_empty()).map(|part| (members, part)),
            );
        }
        Ok(parts)
    }

    /// The request for groups of this size only: fewer ranks, smaller layers, other links.
    fn held_by(&self, members: usize) -> Result<Self, PartitionError> {
        let (inside, between) = self.links.of_groups(members, self.ranks);
        let links = if members > 1 { between } else { self.links.clone() };
        let held = |workload: &Workload| {
            let layers = workload.layers.held_by(members, &inside)?;
            Ok(Workload { layers, ..workload.clone() })
        };
        let workloads = self.workloads.iter().map(held).collect::<Result<Vec<_>, PartitionError>>()?;
        Ok(Self { workloads, ranks: self.ranks / members, links, ..self.clone() })
    }

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
        self.workloads.iter().try_for_each(|workload| workload.check_length(1))?;
        amount("cap", self.cap.unwrap_or(0.0))?;
        amount("state_factor", self.state_factor)?;
        self.workloads.iter().try_for_each(|workload| amount("input_bytes", workload.input_bytes))
    }
}
