//! From the gradients accumulated on one rank to those that the optimizer gets.
//!
//! 1. Data-parallel replicas are reduced, unless the rows have done that already.
//! 2. Copies of tied parameters are added, on each route of a bidirectional placement by itself.
//! 3. The two copies of a stage in a bidirectional placement are added. This comes after step 2, since a sum of more
//!    than two copies depends on their order, which differs between the routes.
//! 4. Once, the members of a tensor-parallel group compare their gradients of weights that are whole on all of them.
//! 5. Everything is scaled by the loss contract.
//! 6. Gradients are checked, once over all ranks: their norm, if it is limited, otherwise whether all are finite; and
//!    whether there are any. Squares are added in the order of the model's stages and parameters, so every cut gives
//!    the same number. A tied parameter counts on its first stage, and only one of equal copies counts.
//! 7. Everything is scaled down to the maximum norm, if one was given.

use super::rank::Rank;
use super::replicas;
use crate::execute::ExecuteError;
use crate::payload::{AnyTensor, first_non_finite};
use crate::stage::ErasedStage;
use crate::train::non_finite::{NonFinite, OnNonFinite};
use burn::module::ParamId;
use burn_pipeline_plan::plan::StageId;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// The result of checking the gradients of all ranks, the same on each.
#[derive(Debug, Default)]
pub(crate) struct Finished {
    /// Their norm before clipping, if they are clipped.
    pub(crate) norm: Option<f64>,
    /// The loss or gradient that the policy does not allow, and because of which weights are not stepped.
    pub(crate) non_finite: Option<NonFinite>,
    /// True if this or an earlier step had gradients, or a step without any was meant. If false, nothing is changed.
    pub(crate) trains: bool,
}

/// One rank's check of one stage's gradients.
#[derive(Debug, Serialize, Deserialize)]
struct Look {
    stage: usize,
    /// The number of gradients.
    count: usize,
    /// The squared norm of each, in visiting order, if they are clipped.
    squares: Vec<f64>,
    /// The parameter of the first non-finite gradient, if that is checked.
    odd: Option<String>,
}

/// A weight's stage and name, and the hash of its gradient if it has one.
type Row = (usize, String, Option<u64>);

impl Rank {
    /// Turns the accumulated gradients into those that the optimizer gets. All ranks call it.
    ///
    /// # Errors
    /// Returns [`ExecuteError`] if another rank failed, or a device reports an error.
    pub(crate) fn finish_gradients(&mut self) -> Result<Finished, ExecuteError> {
        self.executor.exchanging(None, |group, stages| {
            group.set_shard_gradients(stages);
            group.reduce_remaining(stages, false)
        })?;
        self.sharing.sum_gradients(&mut self.executor)?;
        replicas::sum_gradients(&mut self.executor, &self.placement)?;
        self.compare_members_once()?;
        self.scale(self.contract.scale());
        let finished = self.look_at_gradients()?;
        if let (Some(limit), Some(norm)) = (self.settings.clip_norm, finished.norm)
            && norm > limit
        {
            // PyTorch's `clip_grad_norm_` adds the same constant.
            self.scale(limit / (norm + 1e-6));
        }
        Ok(finished)
    }

    fn scale(&mut self, factor: f64) {
        self.executor.stages().values_mut().for_each(|stage| stage.gradients().scale(factor));
    }

    /// In the first step: refuses gradients of whole weights that differ between the members of a group, bit for bit,
    /// and names the weight, the same on all ranks. Losses show most differences sooner or later, but not a weight of
    /// whose gradient each member computes only a part: the losses stay equal, but are those of another model.
    fn compare_members_once(&mut self) -> Result<(), ExecuteError> {
        let (rank, grid) = (self.number(), self.executor.grid());
        // All ranks take part if any group has several members.
        if grid.largest_group() < 2 || std::mem::replace(&mut self.members_compared, true) {
            return Ok(());
        }
        let own = self.whole_gradients().map_err(|message| ExecuteError::Device { rank, message })?;
        let table: Vec<Vec<Row>> = self.executor.gather(&own)?;
        for (other, rows) in table.iter().enumerate() {
            let first = grid.group_of(other).start;
            let one = &table[first];
            // Also if one of them has more weights than the other.
            let odd = (0..one.len().max(rows.len())).find(|&place| one.get(place) != rows.get(place));
            if let Some(row) = odd.and_then(|place| one.get(place).or(rows.get(place))) {
                let (stage, parameter) = (row.0, row.1.clone());
                return Err(ExecuteError::MembersDrift { rank, first, other, stage, parameter });
            }
        }
        Ok(())
    }

    fn whole_gradients(&mut self) -> Result<Vec<Row>, String> {
        let members = self.executor.groups().members.clone();
        let mut rows = Vec::new();
        for (stage, held) in self.executor.stages().iter_mut() {
            let mut seen = HashSet::new();
            let parameters = held.named_parameters().into_iter();
            for parameter in parameters.filter(|p| members.axis_of(p.id).is_none() && seen.insert(p.id)) {
                let hash = held.gradients().get(parameter.id).map(AnyTensor::digest).transpose()?;
                rows.push((stage.index(), parameter.name, hash));
            }
        }
        Ok(rows)
    }

    fn look_at_gradients(&mut self) -> Result<Finished, ExecuteError> {
        let scaled = self.contract.scaled.may_overflow;
        let refuses = scaled || self.settings.on_non_finite != OnNonFinite::Pass;
        let clips = self.settings.clip_norm.is_some();
        if self.trains && !refuses && !clips {
            return Ok(Finished { trains: true, ..Finished::default() });
        }
        let looks = self.own_looks(clips, refuses && !clips)?;
        let table = self.executor.gather(&looks)?;
        let mut looks: Vec<Look> = table.into_iter().flatten().collect();
        looks.sort_by_key(|look| look.stage);
        self.trains |= looks.iter().any(|look| look.count > 0);
        let norm = clips.then(|| looks.iter().flat_map(|look| look.squares.iter()).sum::<f64>().sqrt());
        let odd = looks.into_iter().find_map(|look| Some((look.stage, look.odd?)));
        let odd = odd.map(|(stage, name)| NonFinite::Gradient { stage, name: name.into() });
        let of_norm = norm.filter(|norm| !norm.is_finite()).map(|norm| NonFinite::Norm { norm });
        let of_gradients = of_norm.or(odd);
        let non_finite = match self.contract.non_finite() {
            None if scaled => of_gradients,
            // Gradients of a loss that is not finite are not finite either.
            loss => self.refused_number(loss.or(of_gradients)),
        };
        // Gradients that are not finite may be equal on members whose other gradients differ.
        self.members_compared &= non_finite.is_none();
        Ok(Finished { norm, non_finite, trains: self.trains })
    }

    fn own_looks(&mut self, clips: bool, looks: bool) -> Result<Vec<Look>, ExecuteError> {
        let rank = self.number();
        // Members of a tensor-parallel group, and replicas, have their own pieces, and equal gradients of everything
        // else, which the first one counts. Gradients of sharded stages are shards on all replicas.
        let groups = self.executor.groups().clone();
        let stages: Vec<StageId> = self.executor.stages().keys().copied().filter(|s| s.route() == 0).collect();
        let mut own = Vec::new();
        for stage in stages {
            let (sharded, holders) = (self.executor.group.is_sharded(stage), groups.of(stage));
            let Some(held) = self.executor.stages().get_mut(&stage) else { continue };
            let counts = |id| holders.counts(id, sharded) && !self.sharing.repeats(stage, id);
            let look = Look::at(stage, held.as_mut(), counts, clips, looks);
            own.push(look.map_err(|message| ExecuteError::Device { rank, message })?);
        }
        Ok(own)
    }
}

impl Look {
    /// Checks the gradients that count here.
    fn at(
        stage: StageId,
        held: &mut dyn ErasedStage,
        counts: impl Fn(ParamId) -> bool,
        clips: bool,
        looks: bool,
    ) -> Result<Self, String> {
        let parameters: Vec<ParamId> = held.parameters().into_iter().filter(|&id| counts(id)).collect();
        let store = held.gradients();
        let (ids, gradients): (Vec<ParamId>, Vec<&AnyTensor>) =
            parameters.into_iter().filter_map(|id| Some((id, store.get(id)?))).unzip();
        let squares = gradients.iter().filter(|_| clips).map(|gradient| gradient.squared_norm());
        let squares = squares.collect::<Result<_, String>>()?;
        let odd = if looks { first_non_finite(gradients.iter().copied())? } else { None };
        let (count, stage) = (gradients.len(), stage.index());
        let odd = odd.and_then(|place| ids.get(place)).and_then(|id| {
            held.named_parameters().into_iter().find(|parameter| parameter.id == *id).map(|parameter| parameter.name)
        });
        Ok(Self { stage, count, squares, odd })
    }
}
