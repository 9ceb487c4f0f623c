//! Losses and gradients that are NaN or infinite, and the policy for them.
//!
//! Guarantees: no weight is stepped with such a number unless the policy allows it. All ranks decide alike.
//!
//! 1. Once all ranks have the losses of a training batch, every loss and its weight is checked.
//! 2. Before the step, every gradient is checked as the optimizer would get it: summed over replicas and copies, and
//!    scaled. With [`Builder::clip_norm`](crate::train::Builder::clip_norm) the norm of all of them is checked, which
//!    is computed anyway; otherwise one pass over their elements. Ranks gather all results in one message.
//!
//! PyTorch's `GradScaler` skips steps for the same reason, and also checks every gradient.

use crate::execute::MicrobatchLoss;
use burn_pipeline_plan::plan::StageId;

/// What a training call does if a loss or a gradient is NaN or infinite.
///
/// Evaluations return such losses unchanged. State changed by forwards (running statistics) stays changed in every
/// case.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnNonFinite {
    /// Returns an error that names stage and microbatch, or parameter. Weights stay, gradients accumulated since the
    /// last step are dropped, and the pipeline is ready for the next batch.
    #[default]
    Error,
    /// Skips the step: weights and optimizer state stay, and the gradients of all its batches are dropped.
    /// [`StepReport::skipped`](crate::train::StepReport::skipped) has the number.
    Skip,
    /// Steps the weights anyway.
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
    /// A gradient, when every loss is finite and gradients are not clipped.
    #[error(
        "the gradient of `{name}` on stage {stage} has elements that are NaN or infinite, though every loss is finite"
    )]
    Gradient {
        /// The stage, the first in model order with such a gradient.
        stage: usize,
        /// The parameter's name in the whole model.
        name: Box<str>,
    },
    /// The norm of all gradients, when every loss is finite.
    #[error("the norm of all gradients is {norm}, though every loss is finite")]
    Norm {
        /// The norm.
        norm: f64,
    },
}

burn_pipeline_plan::debug_as_text!(NonFinite);

impl NonFinite {
    /// The first non-finite loss in the batch's order.
    pub(crate) fn among(losses: &[MicrobatchLoss]) -> Option<Self> {
        let odd = losses.iter().find(|part| !(part.loss.is_finite() && part.weight.is_finite()))?;
        let MicrobatchLoss { index, rank, stage, loss, weight } = *odd;
        Some(NonFinite::Loss { rank, stage, index, loss, weight })
    }
}
