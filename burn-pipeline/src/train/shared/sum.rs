//! The reductions of groups: one value for all copies at the start, and one sum of gradients per step.

use super::sharing::{Group, HeldParameter, Sharing};
use crate::execute::{ExecuteError, Executor};
use crate::link::{Activity, Header, MessageKind, TRANSFER};
use crate::payload::AnyTensor;
use crate::ranks::TensorList;
use crate::stage::ErasedStage;
use burn::module::ParamId;

impl Sharing {
    /// Gives every copy the value of the first one. All ranks must call it.
    pub(crate) fn copy_first(&self, executor: &mut Executor) -> Result<(), ExecuteError> {
        // Only the rank of the first copy contributes a value, so the sum over the ranks is that value.
        let first = |executor: &mut Executor, copies: &[HeldParameter]| copies[0].value(executor);
        self.reduce_into(executor, first, set)
    }

    /// Replaces the gradient of every copy by the sum over all copies. All ranks must call it.
    pub(crate) fn sum_gradients(&self, executor: &mut Executor) -> Result<(), ExecuteError> {
        self.reduce_into(executor, own_sum, |held, id, sum| held.gradients().set(id, sum.clone()))
    }

    /// Reduces the value of `of` for each tied parameter, and gives it to each of this rank's copies by `set`.
    fn reduce_into(
        &self,
        executor: &mut Executor,
        of: impl Fn(&mut Executor, &[HeldParameter]) -> Option<AnyTensor>,
        set: impl Fn(&mut dyn ErasedStage, ParamId, &AnyTensor),
    ) -> Result<(), ExecuteError> {
        for group in &self.groups {
            let Some(values) = reduce(executor, group, &of)? else { continue };
            for (member, value) in group.members.iter().zip(values) {
                let Some(value) = value else { continue };
                for copy in &member.copies {
                    if let Some(held) = executor.stages().get_mut(&copy.stage) {
                        set(held.as_mut(), copy.id, &value);
                    }
                }
            }
        }
        Ok(())
    }
}

/// The sum of the gradients of this rank's copies of one parameter, added in model order.
fn own_sum(executor: &mut Executor, copies: &[HeldParameter]) -> Option<AnyTensor> {
    let take = |copy: &HeldParameter| executor.stages().get_mut(&copy.stage)?.gradients().remove(copy.id);
    copies.iter().filter_map(take).reduce(AnyTensor::plus)
}

/// Reduces the value of `of` for each member over the group's ranks; `None` on ranks outside of the group.
fn reduce(
    executor: &mut Executor,
    group: &Group,
    of: impl Fn(&mut Executor, &[HeldParameter]) -> Option<AnyTensor>,
) -> Result<Option<TensorList>, ExecuteError> {
    let rank = executor.rank();
    if !group.ranks.contains(&rank) {
        return Ok(None);
    }
    let mut tensors: TensorList = group.members.iter().map(|member| of(executor, &member.copies)).collect();
    if group.ranks.len() == 1 {
        return Ok(Some(tensors));
    }
    let (set, deadline) = (executor.set_of(&group.ranks), executor.deadline());
    let bytes = tensors.iter().flatten().map(AnyTensor::bytes).sum::<usize>();
    tracing::debug!(target: TRANSFER, rank, peers = ?group.ranks, kind = "AllReduce", bytes, "given to a group");
    executor.link().set_activity(Activity::Gathering);
    let by_link = executor.with_collectives(|collectives| {
        collectives.sum(group.number, &group.ranks, std::mem::take(&mut tensors), deadline)
    });
    let header = Header::of(MessageKind::Collective { group: group.number });
    let reduced = by_link.unwrap_or_else(|| set.all_reduce_lists(header, tensors));
    reduced.map(Some).map_err(|source| ExecuteError::Link { rank, task: None, source })
}

/// Sets one parameter's value, in every place of the module.
fn set(held: &mut dyn ErasedStage, parameter: ParamId, value: &AnyTensor) {
    let weights = held.weights().into_iter();
    held.set_weights(weights.map(|(id, weight)| if id == parameter { value.clone() } else { weight }).collect());
}
