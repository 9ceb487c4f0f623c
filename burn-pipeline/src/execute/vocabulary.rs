//! A rank's pieces of a spread vocabulary: `S`, `T`, `IF`, `IB`, and the collectives between them; see
//! [`vocabulary`](crate::vocabulary).
//!
//! Guarantees: a collective waits nowhere but where what it gives is used; sums over ranks have the order of ranks.
//!
//! 1. *Start*: at its cell, a collective sends what this rank gives: to all that get it, and straight, so that no rank has to pass
//!    anything on. What the rank gives to itself stays in its inbox.
//! 2. *Use*: the first task that needs the collective receives what the others gave. `REDUCE_S` is joined once, by `T` or by the last
//!    stage's backward, whichever comes first; in evaluation after the row.
//! 3. *Order*: messages of the plan and of collectives between two ranks come in the order of the sender's row. So a rank posts all that
//!    others will send it before it begins ([`Executor::announce`]): what comes before the awaited message was sent before it, and
//!    stays in the inbox. No wait is added to those that `check` has proved.
//! 4. Without a target (an evaluation for outputs alone) the head and its collectives do nothing.

use super::error::ExecuteError;
use super::executor::Executor;
use super::run_state::RunState;
use super::transfer::Transfer;
use crate::link::{Header, Message, MessageKind};
use crate::plan::{MicrobatchTask, Op, StageId, Task};
use crate::stage::{AnyTensor, Boundary, Gradients, LossPart, Payload, PayloadSpec, Reduction, StageError};
use crate::vocabulary::{InputParts, Kept, OwnIds, input_gradient, is_ids, join, look_up, score, weight_gradient};
use burn::tensor::{Int, Shape, Tensor};
use std::collections::{HashMap, HashSet};

/// What a row holds for its pieces, by microbatch.
#[derive(Debug, Default)]
pub(super) struct VocabularyState {
    /// What this rank gives to collectives that it has not started.
    given: HashMap<MicrobatchTask, Payload>,
    /// From `S` to `T`.
    kept: HashMap<usize, Kept>,
    /// The shape of the last stage's output, from `S` on its rank to its backward.
    shapes: HashMap<usize, Shape>,
    /// Microbatches whose `REDUCE_S` was joined.
    joined: HashSet<usize>,
    /// This rank's share in the softmax, for `T`.
    shares: HashMap<usize, Tensor<2>>,
    /// The gradient of the last stage's output, on its rank.
    gradients: HashMap<usize, AnyTensor>,
}

impl VocabularyState {
    /// Keeps what this rank gives to a collective until its start.
    pub(super) fn give(&mut self, collective: MicrobatchTask, payload: Payload) {
        self.given.insert(collective, payload);
    }

    /// Bytes held from `S` to `T`.
    pub(super) fn bytes(&self) -> usize {
        self.kept.values().map(Kept::bytes).sum()
    }
}

/// The header of what a pipeline rank gives to a collective.
fn header(collective: MicrobatchTask, from: usize) -> Header {
    let kind = match collective.op() {
        Op::BroadcastHidden => MessageKind::Hidden,
        Op::ReduceHead => MessageKind::HeadPart { from },
        Op::ReduceEmbedding => MessageKind::EmbeddingPart { from },
        _ => MessageKind::EmbeddingGradient,
    };
    Header { kind, stage: collective.stage(), microbatch: collective.microbatch() }
}

/// The rows and the width of what has this shape, taken as a matrix.
fn as_matrix(shape: &Shape) -> [usize; 2] {
    let width = shape.to_vec().last().copied().unwrap_or(1);
    [shape.num_elements() / width.max(1), width]
}

/// Tensors of rank 2, out of a message's list.
fn matrices(payload: &Payload) -> Result<Vec<Tensor<2>>, StageError> {
    let matrix = |tensor: &AnyTensor| tensor.clone().into_tensor::<2, burn::tensor::Float>();
    let read: Result<Vec<Tensor<2>>, _> = payload.tensors().map(matrix).collect();
    read.map_err(|_| StageError::Unsupported("a rank sent other tensors than those of its piece".to_owned()))
}

impl Executor {
    /// Is the embedding spread?
    pub(super) fn spreads_embedding(&self) -> bool {
        self.groups.vocabulary.embedding().is_some()
    }

    /// Is the head spread?
    pub(super) fn spreads_head(&self) -> bool {
        self.groups.vocabulary.head().is_some()
    }

    /// Refuses optimizers that cannot step pieces of parameters.
    pub(crate) fn check_pieces(&self) -> Result<(), ExecuteError> {
        let (rank, vocabulary) = (self.rank(), &self.groups.vocabulary);
        if vocabulary.group().size() < 2 {
            return Ok(());
        }
        for (&stage, held) in self.stages.iter().filter(|(stage, _)| vocabulary.holds(**stage)) {
            let steps = held.steps_by_element();
            if !steps.map_err(|error| ExecuteError::Device { rank, message: error.to_string() })? {
                return Err(ExecuteError::NotByElement { rank, stage });
            }
        }
        Ok(())
    }

    /// Posts all messages that the other ranks will send here, if the plan spreads the vocabulary.
    pub(super) fn announce(&self, state: &mut RunState<'_>) {
        if self.groups.vocabulary.is_nothing() {
            return;
        }
        let (plan, own) = (state.plan(), self.grid().pipeline_rank());
        for peer in (0..plan.ranks()).filter(|&peer| peer != own) {
            let sent = |task: Task| match Transfer::of(plan.placement(), task) {
                Some(transfer) => (task.op().is_send() && transfer.peer == own).then_some(transfer.header),
                None => {
                    let collective = task.of_microbatch().filter(|task| task.op().is_rank_collective())?;
                    gives(state, collective, peer, own).then(|| header(collective, peer))
                }
            };
            let sent = plan.tasks(peer).filter_map(sent).collect();
            state.values.announce(self.grid().rank_of(peer), sent);
        }
    }

    /// The start of a collective: sends what this rank gives.
    pub(super) fn start_collective(
        &mut self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
    ) -> Result<(), ExecuteError> {
        let Some(payload) = state.vocabulary.given.remove(&task) else { return Ok(()) };
        let (own, deadline, ranks) = (self.grid().pipeline_rank(), self.deadline(), state.plan().ranks());
        let (header, holder) = (header(task, own), state.plan().placement().rank_of(task.stage()));
        let receivers: Vec<usize> = (0..ranks).filter(|&to| gives(state, task, own, to)).collect();
        for to in receivers {
            // Parts of the gradient are for the last stage alone.
            let payload = match task.op() {
                Op::ReduceHead if to != holder => Payload::from_parts(payload.parts().take(1).cloned()),
                _ => payload.clone(),
            };
            if to == own {
                state.values.keep(header, payload);
                continue;
            }
            let sent = self.link.send(self.grid().rank_of(to), Message { header, payload }, deadline);
            sent.map_err(|source| self.link_error(Some(task.into()), source))?;
        }
        Ok(())
    }

    /// What a pipeline rank gave to a collective, for a task that needs it.
    fn take_given(
        &mut self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
        collective: MicrobatchTask,
        from: usize,
    ) -> Result<Payload, ExecuteError> {
        let header = header(collective, from);
        if from != self.grid().pipeline_rank() {
            self.arrive(state, task.into(), header, from)?;
        }
        let given = state.values.take(header).ok_or_else(|| self.no_input(task.into()))?;
        let what = match collective.op() {
            Op::BroadcastHidden => "last stage's output",
            Op::ReduceHead => "numbers of the head",
            Op::ReduceEmbedding => "vectors of the embedding",
            _ => "gradient of the first stage's input",
        };
        state.note(task, what, Some((collective.stage(), self.grid().rank_of(from))), &given);
        // The task itself starts when what it needs is here.
        state.started = state.now();
        Ok(given)
    }

    /// What all pipeline ranks gave to a collective, in their order.
    fn take_all(
        &mut self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
        collective: MicrobatchTask,
    ) -> Result<Vec<Payload>, ExecuteError> {
        let ranks = 0..state.plan().ranks();
        let given = ranks.map(|from| self.take_given(state, task, collective, from)).collect();
        state.close(collective.into());
        given
    }

    /// Keeps the last stage's output for the head, if that is spread. Returns whether it is wanted as an output, too.
    pub(super) fn gives_hidden(&self, state: &mut RunState<'_>, task: MicrobatchTask, output: &Payload) -> bool {
        if !self.spreads_head() {
            return true;
        }
        if scores(state) {
            state.vocabulary.give(task.with(task.stage(), Op::BroadcastHidden), output.clone());
        }
        let wanted = self.stages.get(&task.stage()).is_some_and(|held| held.options().outputs);
        wanted || !state.run.trains()
    }

    /// `S`.
    pub(super) fn head_forward(&mut self, state: &mut RunState<'_>, task: MicrobatchTask) -> Result<(), ExecuteError> {
        let index = state.index(task);
        let target = state.run.batch.target(index).map_err(|source| self.batch_error(source))?;
        let (Some(target), Some(head)) = (target, self.groups.vocabulary.head()) else { return Ok(()) };
        let target = self.link.to_device(target);
        state.note(task, "target", None, &target);
        let collective = task.with(task.stage(), Op::BroadcastHidden);
        let holder = state.plan().placement().rank_of(task.stage());
        let hidden = self.take_given(state, task, collective, holder)?;
        state.close(collective.into());
        let hidden = one_float(&hidden).map_err(|source| self.stage_error(task, source))?;
        let (shape, ids) = (hidden.shape(), ids(&target).map_err(|source| self.stage_error(task, source))?);
        if ids.dims()[0] != as_matrix(&shape)[0] {
            let (ids, rows) = (ids.dims()[0], as_matrix(&shape)[0]);
            let reason =
                format!("the target holds {ids} ids, and the last stage's output {rows} rows; give one id a row");
            return Err(self.stage_error(task, StageError::Unsupported(reason)));
        }
        let (group, trains) = (self.groups.vocabulary.group().clone(), state.run.trains());
        let (statistics, rest) = self.caught_in(head, task, |held| {
            let (_, weight) = piece(held.weights())?;
            let own = OwnIds::of(&group, weight.dims()[1], ids);
            let hidden = Tensor::<2>::from_dispatch(hidden.reshape(Shape::new(as_matrix(&shape))).into_dispatch());
            Ok(score(weight, hidden, own, trains))
        })?;
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
            state.vocabulary.shapes.insert(task.microbatch(), shape);
        }
        state.vocabulary.give(task.with(task.stage(), Op::ReduceHead), given);
        Ok(())
    }

    /// Joins what all ranks gave to `REDUCE_S`, unless that was done: this rank's share, and on the last stage's rank the loss and the
    /// gradient of its output.
    fn join_head(&mut self, state: &mut RunState<'_>, task: MicrobatchTask) -> Result<(), ExecuteError> {
        let (microbatch, index, own) = (task.microbatch(), state.index(task), self.grid().pipeline_rank());
        let Some(head) = self.groups.vocabulary.head().filter(|_| state.vocabulary.joined.insert(microbatch)) else {
            return Ok(());
        };
        let given = self.take_all(state, task, task.with(task.stage(), Op::ReduceHead))?;
        let shape = state.vocabulary.shapes.remove(&microbatch);
        let factor = shape.as_ref().map_or(0.0, |shape| factor(state, index, as_matrix(shape)[0]));
        let (mean, trains) = (state.run.seeding.reduction == Reduction::Mean, state.run.trains());
        let (joined, loss, gradient) = self.caught_in(head, task, |_| {
            let given = given.iter().map(matrices).collect::<Result<Vec<_>, _>>()?;
            let joined = join(&given.iter().filter_map(|given| given.first().cloned()).collect::<Vec<_>>());
            let Some(shape) = shape else { return Ok((joined, None, None)) };
            let rows = joined.losses.clone();
            let loss = if mean { rows.mean() } else { rows.sum() };
            let part = |given: Vec<Tensor<2>>| match <[_; 3]>::try_from(given) {
                Ok([_, softmax, targets]) => Some(InputParts { softmax, targets }),
                Err(_) => None,
            };
            let parts: Vec<InputParts> = given.into_iter().filter_map(part).collect();
            let gradient = if trains { input_gradient(&joined, parts, factor) } else { None };
            Ok((joined, Some(loss), gradient.map(|gradient| AnyTensor::new(gradient).reshape(shape))))
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

    /// The gradient of the last stage's output, from the head.
    pub(super) fn hidden_gradient(
        &mut self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
    ) -> Result<Gradients, ExecuteError> {
        self.join_head(state, task)?;
        let gradient = state.vocabulary.gradients.remove(&task.microbatch());
        Ok(vec![Some(gradient.ok_or_else(|| self.no_input(task.into()))?)])
    }

    /// `T`.
    pub(super) fn head_backward(&mut self, state: &mut RunState<'_>, task: MicrobatchTask) -> Result<(), ExecuteError> {
        self.join_head(state, task)?;
        let (index, vocabulary) = (state.index(task), &mut state.vocabulary);
        let (kept, share) = (vocabulary.kept.remove(&task.microbatch()), vocabulary.shares.remove(&task.microbatch()));
        let Some((head, (kept, share))) = self.groups.vocabulary.head().zip(kept.zip(share)) else {
            return Err(self.no_input(task.into()));
        };
        let factor = factor(state, index, share.dims()[0]);
        self.caught_in(head, task, |held| {
            let (id, _) = piece(held.weights())?;
            if held.named_parameters().iter().any(|parameter| parameter.trainable) {
                let gradient = AnyTensor::new(kept.weight_gradient(share, factor));
                held.gradients().add(index, vec![(id, gradient)]);
            }
            Ok(())
        })?;
        self.synchronize(task)?;
        self.refuse_unwritten(task, std::iter::empty())
    }

    /// After an evaluation's row, the losses on the last stage's rank.
    pub(super) fn read_heads(&mut self, state: &mut RunState<'_>) -> Result<(), ExecuteError> {
        let mut left: Vec<usize> = state.vocabulary.shapes.keys().copied().collect();
        left.sort_unstable();
        let last = StageId::new(state.plan().stages() - 1);
        left.into_iter()
            .try_for_each(|microbatch| self.join_head(state, MicrobatchTask::new(last, Op::HeadForward, microbatch)))
    }

    /// The ids of a microbatch, from the batch's input, and their shape.
    fn input_ids(
        &self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
    ) -> Result<(Tensor<1, Int>, Shape), ExecuteError> {
        let input = self.on_device(state.run.batch.input(state.index(task)))?;
        state.note(task, "input", None, &input);
        let shape = input.tensors().next().map(AnyTensor::shape).unwrap_or_else(|| Shape::new([0]));
        Ok((ids(&input).map_err(|source| self.stage_error(task, source))?, shape))
    }

    /// `IF`.
    pub(super) fn embedding_forward(
        &mut self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
    ) -> Result<(), ExecuteError> {
        let Some(embedding) = self.groups.vocabulary.embedding() else { return Ok(()) };
        let (ids, shape) = self.input_ids(state, task)?;
        let group = self.groups.vocabulary.group().clone();
        let vectors = self.caught_in(embedding, task, |held| {
            let (_, weight) = piece(held.weights())?;
            let [words, width] = weight.dims();
            let vectors = look_up(weight, &OwnIds::of(&group, words, ids));
            let dims: Vec<usize> = shape.to_vec().into_iter().chain([width]).collect();
            Ok(AnyTensor::new(vectors).reshape(Shape::from(dims)))
        })?;
        self.synchronize(task)?;
        self.refuse_unwritten(task, std::iter::once(&vectors))?;
        let mut given = Payload::default();
        given.push_tensor(vectors);
        state.vocabulary.give(task.with(task.stage(), Op::ReduceEmbedding), given);
        Ok(())
    }

    /// The first stage's input: the vectors of all ranks' pieces, added up.
    pub(super) fn embedded(&mut self, state: &mut RunState<'_>, task: MicrobatchTask) -> Result<Payload, ExecuteError> {
        let given = self.take_all(state, task, task.with(task.stage(), Op::ReduceEmbedding))?;
        self.caught(task, |_| {
            let vectors = given.iter().map(one_float).collect::<Result<Vec<_>, _>>()?;
            let mut input = Payload::default();
            vectors.into_iter().reduce(AnyTensor::plus).into_iter().for_each(|sum| input.push_tensor(sum));
            Ok(input)
        })
    }

    /// `IB`.
    pub(super) fn embedding_backward(
        &mut self,
        state: &mut RunState<'_>,
        task: MicrobatchTask,
    ) -> Result<(), ExecuteError> {
        let Some(embedding) = self.groups.vocabulary.embedding() else { return Ok(()) };
        let (index, (ids, _)) = (state.index(task), self.input_ids(state, task)?);
        let collective = task.with(task.stage(), Op::BroadcastGradient);
        let holder = state.plan().placement().rank_of(task.stage());
        let gradients = self.take_given(state, task, collective, holder)?;
        state.close(collective.into());
        let gradients = Gradients::from_payload(gradients).map_err(StageError::Input);
        let gradients = gradients.map_err(|source| self.stage_error(task, source))?;
        // `None` if the stage did not use its input.
        let Some(gradient) = gradients.into_iter().flatten().next() else { return Ok(()) };
        let group = self.groups.vocabulary.group().clone();
        self.caught_in(embedding, task, |held| {
            let (id, weight) = piece(held.weights())?;
            if held.named_parameters().iter().any(|parameter| parameter.trainable) {
                let own = OwnIds::of(&group, weight.dims()[0], ids);
                let matrix = Shape::new(as_matrix(&gradient.shape()));
                let gradient = Tensor::<2>::from_dispatch(gradient.reshape(matrix).into_dispatch());
                let gradient = AnyTensor::new(weight_gradient(&weight, &own, gradient));
                held.gradients().add(index, vec![(id, gradient)]);
            }
            Ok(())
        })?;
        self.synchronize(task)?;
        self.refuse_unwritten(task, std::iter::empty())
    }
}

/// Does the head run, so that there is a target?
fn scores(state: &RunState<'_>) -> bool {
    state.run.batch.has_target()
}

/// Does pipeline rank `to` need what rank `from` gives to a collective?
fn gives(state: &RunState<'_>, collective: MicrobatchTask, from: usize, to: usize) -> bool {
    let holder = state.plan().placement().rank_of(collective.stage());
    match collective.op() {
        Op::BroadcastHidden => from == holder && scores(state),
        // In evaluation the loss is all that is wanted.
        Op::ReduceHead => scores(state) && (to == holder || state.run.trains()),
        Op::ReduceEmbedding => to == holder,
        Op::BroadcastGradient => from == holder,
        _ => false,
    }
}

/// What the gradient of each row's loss is multiplied by, where a microbatch has so many: the loss's seed, over the rows for a mean.
fn factor(state: &RunState<'_>, index: usize, rows: usize) -> f64 {
    let seed = state.run.seeding.seed(state.run.batch, index);
    if state.run.seeding.reduction == Reduction::Mean { seed / rows as f64 } else { seed }
}

/// The parameter of a piece.
fn piece(weights: Vec<(burn::module::ParamId, AnyTensor)>) -> Result<(burn::module::ParamId, Tensor<2>), StageError> {
    let weight = weights.into_iter().next().and_then(|(id, weight)| Some((id, weight.into_tensor::<2, _>().ok()?)));
    weight.ok_or_else(|| StageError::Unsupported("a piece of the vocabulary has lost its weight".to_owned()))
}

/// The only tensor of a payload, of floats.
fn one_float(payload: &Payload) -> Result<AnyTensor, StageError> {
    let mut tensors = payload.tensors();
    match (tensors.next(), tensors.next()) {
        (Some(tensor), None) if tensor.dtype().is_float() => Ok(tensor.clone()),
        _ => {
            let got = PayloadSpec::of_payload(payload);
            let reason = format!(
                "a vocabulary that is spread reads one float tensor, and got {got}; have the last stage return hidden states alone"
            );
            Err(StageError::Unsupported(reason))
        }
    }
}

/// The ids of a payload, in one row.
fn ids(payload: &Payload) -> Result<Tensor<1, Int>, StageError> {
    is_ids(payload.clone()).map_err(StageError::Input)?;
    let ids = payload.tensors().next().cloned();
    let flat = ids.map(|ids| {
        let elements = ids.shape().num_elements();
        Tensor::<1, Int>::from_dispatch(ids.reshape(Shape::new([elements])).into_dispatch())
    });
    flat.ok_or_else(|| StageError::Unsupported("there are no ids".to_owned()))
}
