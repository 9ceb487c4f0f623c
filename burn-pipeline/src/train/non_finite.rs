//! Losses and gradients that are NaN or infinite, and what a pipeline does about them.
//!
//! Guarantees: no weight is stepped by such a number, unless it may pass; all ranks decide alike.
//!
//! 1. Every loss of a training batch, with its weight, is looked at once all ranks have the losses.
//! 2. Every gradient is looked at before weights are stepped, as the optimizer would get it: summed over replicas and copies, and
//!    scaled. With [`Builder::clip_norm`](crate::train::Builder::clip_norm) that is the norm of all of them, which is computed anyway; else
//!    one pass over their elements. Ranks gather what each found, in one message.
//!
//! PyTorch's `GradScaler` skips steps for the same reason, and looks at every gradient too.

use crate::execute::MicrobatchLoss;
use crate::plan::StageId;

/// What a training call does where a loss or a gradient is NaN or infinite.
///
/// Evaluations return such losses as they are. What forwards change by themselves (running statistics) has changed in
/// every case.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnNonFinite {
    /// The call is an error that names stage and microbatch, or parameter. Weights stay, gradients gathered since the last step are
    /// dropped, and the pipeline goes on with the next batch.
    #[default]
    Error,
    /// The step leaves weights and optimizer state as they are, and drops the gradients of all its batches.
    /// [`StepReport::skipped`](crate::train::StepReport::skipped) says so.
    Skip,
    /// Nothing: weights are stepped with what came.
    Pass,
}

/// A loss or a gradient that is NaN or infinite.
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum NonFinite {
    /// The loss of a microbatch, or its weight.
    #[error("rank {rank}, stage {stage}, microbatch {index} of the batch: the loss is {loss}, with weight {weight}")]
    Loss {
        /// The rank that computed it.
        rank: usize,
        /// The stage, the last of its route.
        stage: StageId,
        /// The microbatch's index in the batch.
        index: usize,
        /// The loss.
        loss: f64,
        /// Its weight: the samples of the microbatch (`Mean`), 1 (`Sum`), or what the loss function gave.
        weight: f64,
    },
    /// A gradient, where every loss is finite and gradients are not clipped.
    #[error(
        "the gradient of `{name}` on stage {stage} has elements that are NaN or infinite, though every loss is finite"
    )]
    Gradient {
        /// The stage, the first in model order with such a gradient.
        stage: usize,
        /// The parameter's name in the whole model.
        name: Box<str>,
    },
    /// The norm of all gradients, where every loss is finite.
    #[error("the norm of all gradients is {norm}, though every loss is finite")]
    Norm {
        /// The norm.
        norm: f64,
    },
}

burn_pipeline_plan::debug_as_text!(NonFinite);

impl NonFinite {
    /// The first loss in the batch's order that is no finite number.
    pub(crate) fn among(losses: &[MicrobatchLoss]) -> Option<Self> {
        let odd = losses.iter().find(|part| !(part.loss.is_finite() && part.weight.is_finite()))?;
        let MicrobatchLoss { index, rank, stage, loss, weight } = *odd;
        Some(NonFinite::Loss { rank, stage, index, loss, weight })
    }

    /// The norm, if it is no finite number.
    pub(crate) fn of_norm(norm: Option<f64>) -> Option<Self> {
        norm.filter(|norm| !norm.is_finite()).map(|norm| NonFinite::Norm { norm })
    }
}
