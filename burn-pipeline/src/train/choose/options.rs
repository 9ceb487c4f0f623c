//! Options for choosing a schedule.

use burn_pipeline_plan::pass::overlap::{OverlapOptions, OverlapPass};
use std::path::PathBuf;

/// Options for choosing a schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct AutoOptions {
    /// Steps before measuring, for captures, kernel compilation and the optimizer's first state: by default 2.
    pub warm_up: usize,
    /// The number of measured steps: by default 5.
    pub measured: usize,
    /// The fraction of a step's time, without the optimizer, that the best plan must be predicted to save to be
    /// tried: by default 0.02.
    pub gain: f64,
    /// Steps of each of two plans in a trial, rounded up to a multiple of 4: by default 12. Up to three times as many
    /// if the result is too close. With 0 there is no trial: the best plan runs because of its prediction.
    pub trial: usize,
    /// The most bytes that a rank may hold.
    pub cap: Option<f64>,
    /// Bytes held per byte of parameters: 2 with gradients, 4 with Adam's moments (the default).
    pub state_factor: f64,
    /// The number of layers of the model, if the stages' factory makes the layers given by
    /// [`StageContext::layers`](crate::train::StageContext::layers). Then they may be cut in any way, with other
    /// numbers of stages per rank, and the builder's skip edges connect layers. `None` means all layers of
    /// [`Builder::layers`](crate::train::Builder::layers); without such a list it keeps the stages. So does a seed
    /// ([`Builder::seed`](crate::train::Builder::seed)), because random numbers belong to stages.
    pub layers: Option<usize>,
    /// Other numbers of microbatches that a batch may be cut into. They change the order of sums (and so rounding),
    /// memory, kernels, and which batches are too small. A model whose forward has state or draws random numbers keeps
    /// its number.
    pub microbatches: Vec<usize>,
    /// Whether stages may recompute, to fit under the cap. Their forwards must return the same numbers when run again.
    pub recompute: bool,
    /// The overlap passes to try on the best plans, in order; they may move transfers and their waits. If empty,
    /// transfers stay where they are needed.
    pub overlap_passes: Vec<OverlapPass>,
    /// The budgets of these passes: how far a transfer moves, how many cells move along with it, and how many bytes a
    /// rank may hold for that. (The pipeline chooses the simulation options.)
    pub overlap: OverlapOptions,
    /// The folder for stages that move, the system's temporary folder by default. Ranks in processes keep their stages
    /// unless all of them see the folder and no parameter is tied.
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
