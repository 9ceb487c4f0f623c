//! `S` and `T`, and the results of `REDUCE_S` between them.

use super::collectives::scores;
use super::read::{as_matrix, id_named, ids, matrices, one_float, piece};
use crate::execute::error::ExecuteError;
use crate::execute::executor::Executor;
use crate::execute::run_state::RunState;
use crate::link::Link;
use crate::payload::{AnyTensor, Payload};
use crate::stage::{Gradients, LossPart, Reduction, StageError};
use crate::tensor_parallel::OwnIds;
use crate::vocabulary::{InputParts, input_gradient, join, score};
use burn::tensor::{Int, Shape, Tensor};
use burn_pipeline_plan::plan::{MicrobatchTask, Op, StageId};

impl Executor {
    /// Returns true if the head is vocabulary parallel.
    pub(in crate::execute) fn has_parallel_head(&self) -> bool {
        self.groups.vocabulary.head.is_some()
    }

    /// Stores the last stage's output for a vocabulary-parallel head. Returns true if it is also a requested
    /// output.
    pub(in crate::execute) fn gives_hidden(
        &self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
        output: &Payload,
    ) -> bool {
        if !self.has_parallel_head() {
            return true;
        }
        if scores(state) {
            state.vocabulary.give(task.with(task.stage(), Op::BroadcastHidden), output.clone());
        }
        let wanted = self.stages.get(&task.stage()).is_some_and(|held| held.options().outputs);
        wanted || !state.run.trains()
    }

    /// `S`.
    pub(in crate::execute) fn head_forward(
        &mut self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
    ) -> Result<(), ExecuteError> {
        let index = state.index(task);
        let (target, head) = (state.run.batch.target(index), self.groups.vocabulary.head);
        let Some((target, head)) = target.zip(head) else { return Ok(()) };
        let target = self.link.to_device(target);
        state.note(task, "target", None, &target);
        let collective = task.with(task.stage(), Op::BroadcastHidden);
        let holder = state.plan().placement().rank_of(task.stage());
        let hidden = self.take_given(state, task, collective, holder)?;
        state.close(collective.into());
        let hidden = one_float(&hidden).map_err(|source| self.stage_error(task, source))?;
        let (shape, ids) = (hidden.shape(), ids(&target).map_err(|source| self.stage_error(task, source))?);
        one_id_a_row(&ids, &shape).map_err(|source| self.stage_error(task, source))?;
        let (group, tied) = (self.groups.vocabulary.group.clone(), self.groups.vocabulary.is_tied());
        let (dtype, trained) = (hidden.dtype(), state.run.trains().then(|| factor(state, index, as_matrix(&shape)[0])));
        let (wanted, mut words) = (ids.clone(), 0);
        let scored = self.caught(head, task, |held| {
            let (id, weight) = piece(held.computed())?;
            words = group.whole_shape(id, weight.shape())[usize::from(!tied)];
            let own = OwnIds::of(&group, group.part(words), ids);
            let weight = if tied { weight.transpose() } else { weight };
            takes_width(&weight, &shape)?;
            let hidden = Tensor::<2>::from_dispatch(hidden.reshape(Shape::new(as_matrix(&shape))).into_dispatch());
            Ok(score(weight, hidden, own, trained))
        });
        let (statistics, rest) = scored.map_err(|error| id_named(error, task, &wanted, words))?;
        self.synchronize(task)?;
        let mut given = Payload::default();
        given.push_tensor(AnyTensor::new(statistics));
        if let Some((kept, parts)) = rest {
            state.vocabulary.kept.insert(task.microbatch(), kept);
            given.push_tensor(AnyTensor::new(parts.softmax));
            given.push_tensor(AnyTensor::new(parts.targets));
        }
        self.refuse_unwritten(task, given.tensors())?;
        if holder == self.grid().pipeline_rank() {
            state.vocabulary.outputs.insert(task.microbatch(), (shape, dtype));
        }
        state.vocabulary.give(task.with(task.stage(), Op::ReduceHead), given);
        Ok(())
    }

    /// Joins all ranks' messages of `REDUCE_S`, once: gives this rank its share and, on the last stage's rank, the
    /// loss and the gradient of its output.
    fn join_head(&mut self, state: &mut RunState<'_>, task: MicrobatchTask) -> Result<(), ExecuteError> {
        let (microbatch, index, own) = (task.microbatch(), state.index(task), self.grid().pipeline_rank());
        let Some(head) = self.groups.vocabulary.head.filter(|_| state.vocabulary.joined.insert(microbatch)) else {
            return Ok(());
        };
        let given = self.take_all(state, task, task.with(task.stage(), Op::ReduceHead))?;
        let output = state.vocabulary.outputs.remove(&microbatch);
        let factor = output.as_ref().map_or(0.0, |(shape, _)| factor(state, index, as_matrix(shape)[0]));
        let (mean, trains) = (state.run.seeding.reduction == Reduction::Mean, state.run.trains());
        let (joined, loss, gradient) = self.caught(head, task, |_| {
            let given = given.iter().map(matrices).collect::<Result<Vec<_>, _>>()?;
            let joined = join(&given.iter().filter_map(|given| given.first().cloned()).collect::<Vec<_>>());
            let Some((shape, dtype)) = output else { return Ok((joined, None, None)) };
            let rows = joined.losses.clone();
            let loss = if mean { rows.mean() } else { rows.sum() };
            let part = |given: Vec<Tensor<2>>| match <[_; 3]>::try_from(given) {
                Ok([_, softmax, targets]) => Some(InputParts { softmax, targets }),
                Err(_) => None,
            };
            let parts: Vec<InputParts> = given.into_iter().filter_map(part).collect();
            let gradient = if trains { input_gradient(&joined, parts, factor) } else { None };
            let gradient = gradient.map(|gradient| AnyTensor::new(gradient).cast(dtype).reshape(shape));
            Ok((joined, Some(loss), gradient))
        })?;
        if trains {
            state.vocabulary.shares.insert(microbatch, joined.share(own));
        }
        if let Some(loss) = loss {
            let part = LossPart { value: AnyTensor::new(loss), weight: None, observed: None, output: None };
            self.refuse_unwritten(task, part.tensors())?;
            let place = task.with(task.stage(), Op::HeadForward);
            state.losses.insert(index, (place, part));
        }
        state.vocabulary.gradients.extend(gradient.map(|gradient| (microbatch, gradient)));
        Ok(())
    }

    /// The gradient of the last stage's output, computed by the head.
    pub(in crate::execute) fn hidden_gradient(
        &mut self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
    ) -> Result<Gradients, ExecuteError> {
        self.join_head(state, task)?;
        let gradient = state.vocabulary.gradients.remove(&task.microbatch());
        Ok(vec![Some(gradient.ok_or_else(|| self.no_input(task.into()))?)])
    }

    /// `T`.
    pub(in crate::execute) fn head_backward(
        &mut self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
    ) -> Result<(), ExecuteError> {
        self.join_head(state, task)?;
        let (index, vocabulary) = (state.index(task), &mut state.vocabulary);
        let (kept, share) = (vocabulary.kept.remove(&task.microbatch()), vocabulary.shares.remove(&task.microbatch()));
        let Some((head, (kept, share))) = self.groups.vocabulary.head.zip(kept.zip(share)) else {
            return Err(self.no_input(task.into()));
        };
        let tied = self.groups.vocabulary.is_tied();
        self.caught(head, task, |held| {
            let (id, _) = piece(held.computed())?;
            if held.trains() {
                let gradient = kept.weight_gradient(share);
                let gradient = if tied { gradient.transpose() } else { gradient };
                held.gradients().add_part(index, vec![(id, AnyTensor::new(gradient))], tied);
            }
            Ok(())
        })?;
        self.synchronize(task)?;
        self.refuse_unwritten(task, std::iter::empty())
    }

    /// Computes the losses on the last stage's rank after an evaluation's row.
    pub(in crate::execute) fn read_heads(&mut self, state: &mut RunState<'_>) -> Result<(), ExecuteError> {
        let mut left: Vec<usize> = state.vocabulary.outputs.keys().copied().collect();
        left.sort_unstable();
        let last = StageId::new(state.plan().stages() - 1);
        left.into_iter()
            .try_for_each(|microbatch| self.join_head(state, MicrobatchTask::new(last, Op::HeadForward, microbatch)))
    }
}

/// The factor of the gradient of each row's loss in a microbatch with `rows` rows: the loss's seed, divided by the
/// rows for a mean.
fn factor(state: &RunState<'_>, index: usize, rows: usize) -> f64 {
    let seed = state.run.seeding.seed(state.run.batch, index);
    if state.run.seeding.reduction == Reduction::Mean { seed / rows as f64 } else { seed }
}

fn one_id_a_row(ids: &Tensor<1, Int>, output: &Shape) -> Result<(), StageError> {
    let (ids, [rows, _]) = (ids.dims()[0], as_matrix(output));
    let reason =
        || format!("the target has {ids} ids, but the last stage's output has {rows} rows; give one id per row");
    if ids == rows { Ok(()) } else { Err(StageError::Unsupported(reason())) }
}

fn takes_width(head: &Tensor<2>, output: &Shape) -> Result<(), StageError> {
    let ([_, width], takes) = (as_matrix(output), head.dims()[0]);
    let reason = || {
        format!(
            "the last stage's output has width {width}, but the vocabulary-parallel head takes {takes}; \
             make the head of `Builder::vocabulary` as wide as the last stage's output"
        )
    };
    if width == takes { Ok(()) } else { Err(StageError::Unsupported(reason())) }
}
