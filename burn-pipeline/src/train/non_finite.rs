//! Losses and norms that are NaN or infinite, and what a pipeline does about them.
//!
//! Guarantees: all ranks decide alike, and no message is sent for it: they decide by the losses and the norm, which each of
//! them gets anyway.
//!
//! 1. Every loss of a training batch, with its weight, is looked at once all ranks have the losses.
//! 2. With [`Builder::clip_norm`](crate::train::Builder::clip_norm), the norm of all gradients is looked at before weights
//!    are stepped. Without it, gradients are not looked at; a limit of infinity looks and never clips.
//!
//! PyTorch's `GradScaler` skips steps for the same reason, and looks at every gradient instead.

use crate::execute::MicrobatchLoss;
use crate::plan::StageId;

/// What a training call does where a loss, or the norm of all gradients, is NaN or infinite.
///
/// Evaluations return such losses as they are. What forwards change by themselves (running statistics) has changed in
/// every case.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnNonFinite {
    /// The call is an error that names stage and microbatch. Weights stay, gradients gathered since the last step are
    /// dropped, and the pipeline goes on with the next batch.
    #[default]
    Error,
    /// The step leaves weights and optimizer state as they are, and drops the gradients of all its batches.
    /// [`StepReport::skipped`](crate::train::StepReport::skipped) says so.
    Skip,
    /// Nothing: weights are stepped with what came.
    Pass,
}

/// A loss or a norm that is NaN or infinite.
#[derive(Clone, Copy, PartialEq, thiserror::Error)]
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
