//! The state of one run of one rank's row.

use super::context::Received;
use super::outcome::{Measured, RankOutcome};
use super::run::Run;
use super::values::Values;
use crate::data_parallel::Stages;
use crate::link::Header;
use crate::payload::{AnyTensor, CutOver, Payload};
use crate::stage::{LossPart, Reduction, StageError};
use crate::vocabulary::SavedScores;
use burn::tensor::{DType, Shape, Tensor};
use burn_pipeline_plan::plan::{Action, MicrobatchTask, Plan, StageId, Task};
use burn_pipeline_plan::trace::Event;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

/// The number of tensors of each extra of a forward, by its name.
type ExtraCounts = Vec<(&'static str, usize)>;

/// The results of a run so far.
pub(super) struct RunState<'a> {
    pub(super) run: Run<'a>,
    pub(super) values: Values,
    pub(super) vocabulary: VocabularyState,
    pub(super) outcome: RankOutcome,
    /// Losses by the microbatch's index in the batch, still on the device, each with the forward that computed it.
    pub(super) losses: BTreeMap<usize, (MicrobatchTask, LossPart)>,
    /// The index of the current action in the row.
    pub(super) position: usize,
    /// The inputs of the current action, for its error.
    pub(super) received: Vec<Received>,
    /// When the current task began, by the step's clock.
    pub(super) started: Duration,
    /// How many tensors of a stage's input came from the previous stage, and how many along each skip edge. Used to
    /// cut the input's gradients in the backward.
    pub(super) input_counts: HashMap<(StageId, usize), Vec<usize>>,
    /// The extras of forwards whose backward returns gradients of the batch.
    pub(super) extra_counts: HashMap<(StageId, usize), ExtraCounts>,
    /// How the tensors of a value from a group of another size are cut, by the header of their gradients.
    pub(super) cuts: HashMap<Header, Vec<Option<CutOver>>>,
    /// True if members send hashes of replicated tensors that they do not send.
    pub(super) compares: bool,
    /// Positions in `outcome.measured.events` of tasks that run beside later ones.
    open: HashMap<Task, usize>,
}

impl<'a> RunState<'a> {
    pub(super) fn new(run: Run<'a>) -> Self {
        Self {
            run,
            values: Values::default(),
            vocabulary: VocabularyState::default(),
            outcome: RankOutcome {
                measured: Measured { peak_held_bytes: Some(0), ..Measured::default() },
                ..RankOutcome::default()
            },
            losses: BTreeMap::new(),
            position: 0,
            received: Vec::new(),
            started: Duration::ZERO,
            input_counts: HashMap::new(),
            extra_counts: HashMap::new(),
            cuts: HashMap::new(),
            compares: false,
            open: HashMap::new(),
        }
    }

    pub(super) fn plan(&self) -> &'a Plan {
        self.run.plan.plan()
    }

    /// The index in the whole batch of a task's microbatch; plans count within a route.
    pub(super) fn index(&self, task: MicrobatchTask) -> usize {
        self.run.share.first + self.plan().index_in_batch(task.stage(), task.microbatch())
    }

    /// Time since the step began.
    pub(super) fn now(&self) -> Duration {
        self.run.began.elapsed()
    }

    /// Adds an event that began at `start` and ends now.
    pub(super) fn record(&mut self, rank: usize, action: Action, start: Duration) {
        let (start, end) = (start.as_secs_f64(), self.now().as_secs_f64());
        self.outcome.measured.events.push(Event { rank, action, start, end });
    }

    /// Records that the last event's task runs beside later ones.
    pub(super) fn keep_open(&mut self, task: Task) {
        self.open.insert(task, self.outcome.measured.events.len().saturating_sub(1));
    }

    /// Ends the event of a task that ran beside later ones.
    pub(super) fn close(&mut self, task: Task) {
        let end = self.now().as_secs_f64();
        let event = self.open.remove(&task).and_then(|position| self.outcome.measured.events.get_mut(position));
        event.into_iter().for_each(|event| event.end = end);
    }

    /// Updates the peaks of held microbatches and bytes.
    pub(super) fn count_held(&mut self, stages: &Stages) {
        // Shards of the vocabulary have no engine; their own state holds their tensors.
        let placement = self.plan().placement();
        let stages = || stages.iter().filter(|(stage, _)| placement.contains(**stage)).map(|(_, held)| held);
        let measured = &mut self.outcome.measured;
        measured.peak_held = measured.peak_held.max(stages().map(|held| held.engine().held()).sum());
        let bytes = stages().map(|held| held.engine().held_bytes()).sum::<Option<usize>>();
        let bytes = bytes.map(|bytes| bytes + self.vocabulary.bytes());
        measured.peak_held_bytes = measured.peak_held_bytes.zip(bytes).map(|(peak, bytes)| peak.max(bytes));
    }

    /// The weight of a microbatch's loss in the loss of the batch.
    pub(super) fn weight(&self, index: usize, loss: &LossPart) -> Result<f64, StageError> {
        match (self.run.seeding.reduction, &loss.weight) {
            (Reduction::Mean, None) => Ok(self.run.batch.size(index) as f64),
            (Reduction::Sum, None) => Ok(1.0),
            (Reduction::Weighted, Some(weight)) => weight.read().map_err(StageError::Device),
            (Reduction::Weighted, None) => Err(StageError::NoWeight),
            (reduction, Some(_)) => Err(StageError::UnusedWeight { reduction }),
        }
    }
}

/// What a row holds for this rank's shards of the vocabulary, by microbatch.
#[derive(Debug, Default)]
pub(super) struct VocabularyState {
    /// This rank's messages to collectives that it has not started.
    pub(super) given: HashMap<MicrobatchTask, Payload>,
    /// From `S` to `T`.
    pub(super) kept: HashMap<usize, SavedScores>,
    /// Shape and type of the last stage's output, from `S` on its rank to its backward.
    pub(super) outputs: HashMap<usize, (Shape, DType)>,
    /// Microbatches whose `REDUCE_S` was joined.
    pub(super) joined: HashSet<usize>,
    /// This rank's share of the softmax, for `T`.
    pub(super) shares: HashMap<usize, Tensor<2>>,
    /// The gradient of the last stage's output, on its rank.
    pub(super) gradients: HashMap<usize, AnyTensor>,
}

impl VocabularyState {
    /// Stores this rank's message to a collective until it starts.
    pub(super) fn give(&mut self, collective: MicrobatchTask, payload: Payload) {
        self.given.insert(collective, payload);
    }

    /// Bytes held from `S` to `T`.
    pub(super) fn bytes(&self) -> usize {
        self.kept.values().map(SavedScores::bytes).sum()
    }
}
