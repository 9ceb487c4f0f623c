//! Where `train_moe` cuts its model: as given, or so that stages have equal numbers of blocks, parameters or FLOPs,
//! including experts.
//!
//! A block counts the parameters of all its experts, and the FLOPs of the experts that each token goes to; see
//! [`burn_pipeline_moe::cost`]. Nothing is measured, so all processes cut alike.

use crate::cut::Cut;
use crate::moe::gpt::{MoeGptConfig, MoeGptError};
use crate::setup::Setup;
use burn_pipeline::cost::{Dtype, Layers, Measure, Partition, PartitionError, PartitionOptions, Pattern};
use burn_pipeline_moe::cost::MicrobatchSize;
use clap::ValueEnum;

/// What the stages balance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Balance {
    /// The number of blocks.
    Blocks,
    /// Parameters of all experts: equal memory per stage.
    Parameters,
    /// FLOPs of the experts that tokens go to: equal time per rank.
    Flops,
}

/// Why the model cannot be cut.
#[derive(thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum MoeCutError {
    /// The model cannot be cut like this.
    #[error("--balance: {0}")]
    Partition(#[from] PartitionError),
    /// The model is invalid.
    #[error(transparent)]
    Model(#[from] MoeGptError),
    /// The plan is not known yet.
    #[error("--schedule auto chooses the stages, so --balance cannot cut them; leave one of them out")]
    Auto,
    /// The cut is for the other model's layers.
    #[error("--cut optimal and --costs are for `train_gpt`, which measures its layers; use --balance flops")]
    Measured,
    /// Two cuts were given.
    #[error("--cut and --balance both choose the stages; leave one of them out")]
    Twice,
    /// There are more stages than blocks.
    #[error(
        "{blocks} blocks make no {stages} stages, which hold at least one each; give more --layers, or fewer ranks or \
         --chunks"
    )]
    Blocks { blocks: usize, stages: usize },
    /// The given blocks are of another model.
    #[error("--cut has the blocks {given}, and the model is {model}; write those of --pattern, repeated to --layers")]
    OtherModel { given: String, model: String },
    /// The cut has another number of stages than the schedule.
    #[error("--cut makes {cut} stages, and the schedule runs {stages}")]
    Stages { cut: usize, stages: usize },
}

burn_pipeline::debug_as_text!(MoeCutError);

/// The FLOPs per second for estimating seconds; the cut does not depend on it.
const RATE: f64 = 1e10;

/// The model with the stage boundaries that the flags request.
///
/// # Errors
/// Returns a [`MoeCutError`] if the flags contradict each other or the model.
pub fn cut(model: &MoeGptConfig, balance: Balance, setup: &Setup) -> Result<MoeGptConfig, MoeCutError> {
    let options = &setup.options;
    if options.cut == Cut::Optimal || options.costs.is_some() {
        return Err(MoeCutError::Measured);
    }
    match (&options.cut, balance) {
        (Cut::Given(given), Balance::Blocks) => as_given(model, given, setup.plan.stages()),
        (Cut::Given(_), _) => Err(MoeCutError::Twice),
        (_, Balance::Blocks) => by_blocks(model, setup.plan.stages()),
        _ if setup.auto.is_some() => Err(MoeCutError::Auto),
        (_, balance) => balance.of(model, setup),
    }
}

/// The model as it is: without boundaries, stages have equal numbers of blocks.
fn by_blocks(model: &MoeGptConfig, stages: usize) -> Result<MoeGptConfig, MoeCutError> {
    let blocks = model.pattern.chars().count();
    match stages > blocks {
        true => Err(MoeCutError::Blocks { blocks, stages }),
        false => Ok(model.clone()),
    }
}

fn as_given(model: &MoeGptConfig, given: &Pattern, stages: usize) -> Result<MoeGptConfig, MoeCutError> {
    let letters: String = given.kinds().iter().collect();
    let cut = given.boundaries().len() + 1;
    if letters != model.pattern {
        return Err(MoeCutError::OtherModel { given: letters, model: model.pattern.clone() });
    }
    if cut != stages {
        return Err(MoeCutError::Stages { cut, stages });
    }
    Ok(model.clone().with_boundaries(given.boundaries().to_vec()))
}

impl Balance {
    /// The model with its stage boundaries.
    fn of(self, model: &MoeGptConfig, setup: &Setup) -> Result<MoeGptConfig, MoeCutError> {
        let plan = &setup.plan;
        let batch = setup.options.batch.div_ceil(plan.total_microbatches() * setup.options.data_parallel);
        let size = MicrobatchSize { batch, seq: model.seq, dtype: Dtype::F32 };
        let cut = match self {
            Balance::Blocks => return Ok(model.clone()),
            Balance::Parameters => {
                let weights: Vec<f64> =
                    model.cost_layers(size)?.all().iter().map(|layer| Measure::Parameters.of(layer)).collect();
                Partition::weighted(&weights, plan.stages())?
            }
            Balance::Flops => {
                let layers = model.cost_layers(size)?;
                let timed = layers.all().iter().map(|layer| layer.clone().estimated(RATE)).collect();
                Partition::optimal(&Layers::new(timed)?, plan.placement(), &PartitionOptions::default())?.partition
            }
        };
        Ok(model.clone().with_boundaries(cut.boundaries().to_vec()))
    }
}
