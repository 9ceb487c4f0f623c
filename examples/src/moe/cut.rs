//! Where `train_moe` cuts its model: as written, or so that stages are alike in blocks, parameters or FLOPs, experts counted.
//!
//! Blocks weigh as many parameters as they hold, all experts among them, and as many FLOPs as the experts that tokens go to;
//! see [`burn_pipeline_moe::cost`]. Nothing is measured, so that all processes cut alike.

use crate::cut::Cut;
use crate::moe::gpt::{MoeGptConfig, MoeGptError};
use crate::setup::Setup;
use burn_pipeline::cost::{Dtype, Layers, Measure, Partition, PartitionError, PartitionOptions, Pattern};
use burn_pipeline_moe::cost::MicrobatchSize;
use clap::ValueEnum;

/// What the cut into stages balances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Balance {
    /// Their number.
    Blocks,
    /// Parameters, all experts counted: as much memory in each.
    Parameters,
    /// FLOPs, the experts counted that tokens go to: as much time on each rank.
    Flops,
}

/// Why there is no cut.
#[derive(thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum MoeCutError {
    /// The model cannot be cut so.
    #[error("--balance: {0}")]
    Partition(#[from] PartitionError),
    /// There is no such model.
    #[error(transparent)]
    Model(#[from] MoeGptError),
    /// A cut for a plan that is not known yet.
    #[error("--schedule auto places stages anew, so that --balance cannot cut for them; leave one of them out")]
    Auto,
    /// A cut of the other model's layers.
    #[error("--cut optimal and --costs are for `train_gpt`, which measures its layers; say --balance flops")]
    Measured,
    /// Two cuts.
    #[error("--cut says where stages begin, and --balance, too; leave one of them out")]
    Twice,
    /// The text is of another model.
    #[error("--cut has the blocks {given}, and the model is {model}; write those of --pattern, repeated to --layers")]
    OtherModel { given: String, model: String },
    /// The number of stages is another.
    #[error("--cut makes {cut} stages, and the schedule runs {stages}")]
    Stages { cut: usize, stages: usize },
}

burn_pipeline::debug_as_text!(MoeCutError);

/// FLOPs a second that seconds are estimated at; a cut does not depend on it.
const RATE: f64 = 1e10;

/// The model with the boundaries of its stages, as the flags say.
///
/// # Errors
/// [`MoeCutError`] for flags that contradict each other or the model.
pub fn cut(model: &MoeGptConfig, balance: Balance, setup: &Setup) -> Result<MoeGptConfig, MoeCutError> {
    let options = &setup.options;
    if options.cut == Cut::Optimal || options.costs.is_some() {
        return Err(MoeCutError::Measured);
    }
    match (&options.cut, balance) {
        (Cut::Given(given), Balance::Blocks) => as_given(model, given, setup.plan.stages()),
        (Cut::Given(_), _) => Err(MoeCutError::Twice),
        (_, Balance::Blocks) => Ok(model.clone()),
        _ if setup.auto.is_some() => Err(MoeCutError::Auto),
        (_, balance) => balance.of(model, setup),
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
    /// The model with the boundaries of its stages.
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
