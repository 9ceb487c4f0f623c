//! Gradients of the batch: of the first stage's input, and of the extras that any stage reads.
//!
//! Guarantees: without [`RunOptions::input_gradients`](super::RunOptions) none is computed, and nothing is kept. With
//! it, each is kept as its backward made it, until the end of the row.
//!
//! 1. `F` asks for the gradient of every float tensor of the stage's extras, except the loss's seed, and notes how many
//!    tensors each extra has.
//! 2. `I` or `B` returns these gradients after those of the input, and they are cut off. On the first stage, the
//!    input's are kept with them: nobody else uses them.

use super::executor::Executor;
use super::outcome::OfBatch;
use super::run_state::RunState;
use crate::payload::{Boundary, Payload, TensorKind};
use crate::stage::{Gradients, LOSS_SEED};
use burn_pipeline_plan::plan::MicrobatchTask;

/// For each tensor of an extra, true if its gradient is wanted.
pub(super) fn wanted(name: &str, extra: &Payload) -> impl Iterator<Item = bool> {
    extra.tensors().map(move |tensor| name != LOSS_SEED && tensor.kind() == TensorKind::Float)
}

impl Executor {
    /// Returns true if a backward of this run returns gradients of the batch.
    pub(super) fn wants_of_batch(&self, state: &RunState<'_>) -> bool {
        self.options.input_gradients && state.run.trains()
    }

    /// Keeps the gradients of the batch among those that a backward returned, and returns the input's.
    pub(super) fn keep_of_batch(
        &self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
        mut gradients: Gradients,
    ) -> Gradients {
        if !self.wants_of_batch(state) {
            return gradients;
        }
        let (stage, index) = (task.stage(), state.index(task));
        let counts = state.extra_counts.remove(&(stage, task.microbatch())).unwrap_or_default();
        let all: usize = counts.iter().map(|(_, count)| count).sum();
        let mut left = gradients.split_off(gradients.len().saturating_sub(all)).into_iter();
        let mut kept: OfBatch = Vec::new();
        if stage.previous().is_none() {
            kept.push((None, gradients.clone()));
        }
        for (name, count) in counts {
            let own = left.by_ref().take(count).collect();
            if name != LOSS_SEED {
                kept.push((Some(name.to_owned()), own));
            }
        }
        if !kept.is_empty() {
            state.outcome.of_batch.push(((stage, index), kept.into_payload()));
        }
        gradients
    }
}
