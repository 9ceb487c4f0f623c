//! How a schedule is chosen.

use crate::pass::overlap::{OverlapOptions, OverlapPass};
use std::path::PathBuf;

/// How a schedule is chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct AutoOptions {
    /// Steps before measuring, for captures, compiled kernels and the optimizer's first state.
    pub warm_up: usize,
    /// Steps that are measured.
    pub measured: usize,
    /// The share of a pass that the best plan must be predicted to save, to be tried.
    pub gain: f64,
    /// Steps of each of two plans that are compared in a trial, rounded up to a multiple of 4; up to three times as many where they
    /// are too close to tell. With 0 there is no trial: the best plan runs because it is predicted to.
    pub trial: usize,
    /// The most bytes that a rank may hold.
    pub cap: Option<f64>,
    /// Bytes held for each byte of parameters: 2 with gradients, 4 with Adam's moments.
    pub state_factor: f64,
    /// Layers of the model, if the stages' factory makes the layers that
    /// [`StageContext::layers`](crate::train::StageContext::layers) gives it: then they may be cut in any way, into other
    /// numbers of stages a rank. Skip edges of the builder are between layers then. `None` keeps the stages as they are; so does
    /// a seed ([`Builder::seed`](crate::train::Builder::seed)), as random numbers belong to stages.
    pub layers: Option<usize>,
    /// Other numbers of microbatches that a batch may be cut into. Sums are rounded in another order then, and memory, kernels
    /// and batches that are too small differ; a model whose forward changes or draws anything keeps its number.
    pub microbatches: Vec<usize>,
    /// Whether stages may recompute, to fit under the cap. Their forwards must give the same numbers when they run again.
    pub recompute: bool,
    /// The overlap passes to try on the best plans, in order, where transfers and their waits may move; with none they stay
    /// where they are needed.
    pub overlap_passes: Vec<OverlapPass>,
    /// The budgets of these passes: how far a transfer moves, how many cells along with it, what a rank may hold for that. (How
    /// plans are simulated is the pipeline's own choice.)
    pub overlap: OverlapOptions,
    /// Where stages are stored while they move: the system's temporary folder by default. Ranks in processes keep their stages
    /// unless all of them see the folder.
    pub folder: Option<PathBuf>,
}

impl Default for AutoOptions {
    fn default() -> Self {
        Self {
            warm_up: 2,
            measured: 5,
            gain: 0.02,
            trial: 12,
            cap: None,
            state_factor: 4.0,
            layers: None,
            microbatches: Vec::new(),
            recompute: false,
            overlap_passes: OverlapPass::USUAL.to_vec(),
            overlap: OverlapOptions::default(),
            folder: None,
        }
    }
}
