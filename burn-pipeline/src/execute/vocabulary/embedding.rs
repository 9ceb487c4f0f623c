//! `IF` and `IB`, and the first stage's input between them.

use super::read::{as_matrix, id_named, ids, one_float, piece};
use crate::execute::error::ExecuteError;
use crate::execute::executor::Executor;
use crate::execute::run_state::RunState;
use crate::link::Link;
use crate::payload::{AnyTensor, Boundary, Payload};
use crate::tensor_parallel::OwnIds;
use crate::vocabulary::{look_up, weight_gradient};
use burn::tensor::{Int, Shape, Tensor};
use burn_pipeline_plan::plan::{MicrobatchTask, Op};

impl Executor {
    /// Returns true if the embedding is vocabulary parallel.
    pub(in crate::execute) fn has_parallel_embedding(&self) -> bool {
        self.groups.vocabulary.embedding.is_some()
    }

    /// The ids of a microbatch, from the batch's input, and their shape.
    fn input_ids(
        &self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
    ) -> Result<(Tensor<1, Int>, Shape), ExecuteError> {
        let input = self.link.to_device(state.run.batch.input(state.index(task)));
        state.note(task, "input", None, &input);
        let shape = input.tensors().next().map(AnyTensor::shape).unwrap_or_else(|| Shape::new([0]));
        Ok((ids(&input).map_err(|source| self.stage_error(task, source))?, shape))
    }

    /// `IF`.
    pub(in crate::execute) fn embedding_forward(
        &mut self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
    ) -> Result<(), ExecuteError> {
        let Some(embedding) = self.groups.vocabulary.embedding else { return Ok(()) };
        let (ids, shape) = self.input_ids(state, task)?;
        let group = self.groups.vocabulary.group.clone();
        let (given, mut words) = (ids.clone(), 0);
        let vectors = self.caught(embedding, task, |held| {
            let (id, weight) = piece(held.computed())?;
            words = group.whole_shape(id, weight.shape())[0];
            let width = weight.dims()[1];
            let vectors = look_up(weight, &OwnIds::of(&group, group.part(words), ids));
            let dims: Vec<usize> = shape.to_vec().into_iter().chain([width]).collect();
            Ok(AnyTensor::new(vectors).reshape(Shape::from(dims)))
        });
        let vectors = vectors.map_err(|error| id_named(error, task, &given, words))?;
        self.synchronize(task)?;
        self.refuse_unwritten(task, std::iter::once(&vectors))?;
        state.vocabulary.give(task.with(task.stage(), Op::ReduceEmbedding), vectors.into_payload());
        Ok(())
    }

    /// The first stage's input: the sum of all ranks' vectors.
    pub(in crate::execute) fn embedded(
        &mut self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
    ) -> Result<Payload, ExecuteError> {
        let given = self.take_all(state, task, task.with(task.stage(), Op::ReduceEmbedding))?;
        self.caught(task.stage(), task, |_| {
            let vectors = given.iter().map(one_float).collect::<Result<Vec<_>, _>>()?;
            Ok(vectors.into_iter().reduce(AnyTensor::plus).map(AnyTensor::into_payload).unwrap_or_default())
        })
    }

    /// `IB`.
    pub(in crate::execute) fn embedding_backward(
        &mut self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
    ) -> Result<(), ExecuteError> {
        let Some(embedding) = self.groups.vocabulary.embedding else { return Ok(()) };
        let (index, (ids, _)) = (state.index(task), self.input_ids(state, task)?);
        let collective = task.with(task.stage(), Op::BroadcastGradient);
        let holder = state.plan().placement().rank_of(task.stage());
        let gradients = self.take_given(state, task, collective, holder)?;
        state.close(collective.into());
        let gradients = self.as_gradients(task, gradients)?;
        let (group, tied) = (self.groups.vocabulary.group.clone(), self.groups.vocabulary.is_tied());
        self.caught(embedding, task, |held| {
            let (id, weight) = piece(held.computed())?;
            if !held.trains() {
                return Ok(());
            }
            // There is no gradient if the stage did not use its input. The microbatch counts all the same: ordered sums
            // wait for it.
            let of_vectors = gradients.into_iter().flatten().next().map(|gradient| {
                let words = group.whole_shape(id, weight.shape())[0];
                let own = OwnIds::of(&group, group.part(words), ids);
                let matrix = Shape::new(as_matrix(&gradient.shape()));
                let gradient = Tensor::<2>::from_dispatch(gradient.reshape(matrix).into_dispatch());
                (id, AnyTensor::new(weight_gradient(&weight, &own, gradient)))
            });
            held.gradients().add_part(index, of_vectors.into_iter().collect(), tied);
            Ok(())
        })?;
        self.synchronize(task)?;
        self.refuse_unwritten(task, std::iter::empty())
    }
}
