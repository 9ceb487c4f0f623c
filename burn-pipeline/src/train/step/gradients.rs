//! From the gradients that gathered on one rank to those that the optimizer gets.
//!
//! 1. Data-parallel replicas are reduced, as far as the rows have not done that already.
//! 2. The two replicas of a stage in a bidirectional placement are added up.
//! 3. Copies of shared parameters are added up.
//! 4. Once, the ranks that hold a stage together compare what they have of weights that are whole on all of them (`members`).
//! 5. Everything is scaled by the loss contract.
//! 6. Everything is scaled down to the largest norm, if one was given. The norm is over all ranks. Squares are added in
//!    the order of the model's stages and parameters, so that every cut gives the same number. A shared parameter counts on its first stage.

use super::rank::Rank;
use super::replicas;
use crate::execute::ExecuteError;
use crate::link::{Activity, gather};
use crate::plan::StageId;
use crate::stage::ErasedStage;
use burn::module::ParamId;

impl Rank {
    /// Makes the gathered gradients those that the optimizer gets; returns their norm before clipping, if they are
    /// clipped. All ranks call it.
    ///
    /// # Errors
    /// If another rank failed, or a device reports an error.
    pub(crate) fn finish_gradients(&mut self) -> Result<Option<f64>, ExecuteError> {
        self.executor.set_shard_gradients();
        self.executor.reduce_remaining(false)?;
        replicas::sum_gradients(&mut self.executor, &self.placement)?;
        self.sharing.sum_gradients(&mut self.executor)?;
        self.compare_members_once()?;
        self.scale(self.contract.scale());
        let Some(limit) = self.settings.clip_norm else { return Ok(None) };
        let norm = self.gradient_norm()?;
        if norm > limit {
            // PyTorch's `clip_grad_norm_` adds the same constant.
            self.scale(limit / (norm + 1e-6));
        }
        Ok(Some(norm))
    }

    fn scale(&mut self, factor: f64) {
        self.executor.stages().values_mut().for_each(|stage| stage.gradients().scale(factor));
    }

    fn gradient_norm(&mut self) -> Result<f64, ExecuteError> {
        let rank = self.number();
        // Ranks that hold a stage together, and its replicas, have their pieces, and equal gradients of all else, which the first one
        // counts. Gradients of sharded stages are pieces on all replicas.
        let groups = self.executor.groups().clone();
        let stages: Vec<StageId> = self.executor.stages().keys().copied().filter(|s| s.replica() == 0).collect();
        let mut rows = Vec::new();
        for stage in stages {
            let (sharded, holders) = (self.executor.shards(stage), groups.of(stage));
            let Some(held) = self.executor.stages().get_mut(&stage) else { continue };
            let counts = |id| holders.counts(id, sharded) && !self.sharing.repeats(stage, id);
            let squares = squares(held.as_mut(), counts);
            rows.push((stage.index(), squares.map_err(|message| ExecuteError::Device { rank, message })?));
        }
        let deadline = self.executor.deadline();
        let link = self.executor.link();
        link.set_activity(Activity::Gathering);
        let table = gather(link, &rows, deadline).map_err(|source| self.link_error(source))?;
        let mut by_stage: Vec<_> = table.into_iter().flatten().collect();
        by_stage.sort_by_key(|(stage, _)| *stage);
        Ok(by_stage.iter().flat_map(|(_, squares)| squares.iter()).sum::<f64>().sqrt())
    }
}

/// The squared norm of each parameter's gradient, in visiting order, of those that count here.
fn squares(held: &mut dyn ErasedStage, counts: impl Fn(ParamId) -> bool) -> Result<Vec<f64>, String> {
    let parameters = held.parameters().into_iter().filter(|&id| counts(id));
    let store = held.gradients();
    parameters.filter_map(|id| store.get(id)).map(|gradient| gradient.squared_norm()).collect()
}
