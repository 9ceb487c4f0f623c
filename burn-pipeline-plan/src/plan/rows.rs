//! [`Plan`]: the rows of all ranks, with their placement and microbatch counts.
//!
//! Guarantees: a plan has one row per rank, one microbatch count per route, at least one microbatch, and valid skip
//! edges. The rows may be any; [`check`](super::check) proves that they can run.
//!
//! Microbatches are counted within a route. In a bidirectional placement both routes start at 0, as in DualPipe's
//! own tables, so a plan's text is that of the papers. [`Plan::index_in_batch`] gives the position in the batch.

use super::action::Action;
use super::error::PlanError;
use super::op::Op;
use super::placement::Placement;
use super::skip_edge::SkipEdge;
use super::skips::{checked, edge_of};
use super::stage_id::StageId;
use super::task::{MicrobatchTask, Task};
use serde::Serialize;

/// The actions of every rank, with the placement of stages and the microbatch counts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Plan {
    name: String,
    placement: Placement,
    microbatches: Vec<usize>,
    rows: Vec<Vec<Action>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    skips: Vec<SkipEdge>,
    #[serde(skip_serializing_if = "is_zero")]
    first_trained: usize,
}

impl Plan {
    /// A plan with these rows. `microbatches` has one count per route. [`Plan::check`] proves that the rows can
    /// run.
    ///
    /// # Errors
    /// Returns [`PlanError`] if the number of rows or counts does not fit the placement, or if a count is out of
    /// range.
    pub fn new(
        name: impl Into<String>,
        placement: Placement,
        microbatches: Vec<usize>,
        rows: Vec<Vec<Action>>,
    ) -> Result<Self, PlanError> {
        if rows.len() != placement.ranks() {
            return Err(PlanError::Rows { rows: rows.len(), ranks: placement.ranks() });
        }
        Self::check_counts(&placement, &microbatches)?;
        Ok(Self { name: name.into(), placement, microbatches, rows, skips: Vec::new(), first_trained: 0 })
    }

    /// Refuses microbatch counts that do not fit the placement, or are out of range.
    pub(crate) fn check_counts(placement: &Placement, microbatches: &[usize]) -> Result<(), PlanError> {
        if microbatches.len() != placement.routes() {
            return Err(PlanError::Routes { counts: microbatches.len(), routes: placement.routes() });
        }
        if let Some(&microbatches) = microbatches.iter().find(|&&m| m > Task::MAX_MICROBATCHES + 1) {
            return Err(PlanError::TooManyMicrobatches { microbatches });
        }
        if microbatches.iter().all(|&m| m == 0) {
            return Err(PlanError::NoMicrobatch);
        }
        Ok(())
    }

    /// A plan inferred from rows alone. A stage is placed on the rank that names it, a route has one microbatch
    /// more than the largest number in its tasks, the skip edges are those of the transfers, and if the
    /// first stage with a backward has `W` alone, it is the first one that trains.
    ///
    /// # Errors
    /// Returns [`PlanError::TwoRanks`] if two ranks name one stage, and [`PlanError::MissingStage`] if no rank
    /// names a stage below the last one.
    pub fn infer(name: impl Into<String>, rows: Vec<Vec<Action>>) -> Result<Self, PlanError> {
        let placement = Placement::infer(&rows)?;
        let mut microbatches = vec![0; placement.routes()];
        for task in rows.iter().flatten().flat_map(|a| a.tasks()) {
            let count = &mut microbatches[task.stage().route()];
            *count = task.microbatch().map_or(*count, |m| (*count).max(m + 1));
        }
        let tasks = rows.iter().flatten().flat_map(|action| action.tasks());
        let skips: std::collections::BTreeSet<SkipEdge> = tasks.filter_map(edge_of).collect();
        let plan = Self::new(name, placement, microbatches, rows)?.with_skips(skips.into_iter().collect())?;
        let first_trained = plan.first_alone();
        Ok(Self { first_trained, ..plan })
    }

    /// The same plan for a model with these skip edges. [`Plan::with_transfers`] adds their transfers; an already
    /// lowered plan must have them.
    ///
    /// ```
    /// use burn_pipeline_plan::{pass, plan::Plan};
    /// let plan = Plan::from_csv("mine", "0F0\n1F0\n2F0\n")?.with_skips(vec![(0, 2).into()])?;
    /// let csv = plan.with_transfers()?.to_csv();
    /// assert_eq!(csv, "0F0,0SEND_F0,0SEND_F0>2\n1RECV_F0,1F0,1SEND_F0\n2RECV_F0<0,2RECV_F0,2F0\n");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`PlanError::Skip`] if an edge is not valid.
    pub fn with_skips(self, skips: Vec<SkipEdge>) -> Result<Self, PlanError> {
        let skips = checked(skips, self.placement.stages(), Task::MAX_SKIP)?;
        Ok(Self { skips, ..self })
    }

    /// The same plan with other rows.
    ///
    /// # Panics
    /// Panics if there is not exactly one row per rank.
    pub fn with_rows(&self, rows: Vec<Vec<Action>>) -> Self {
        assert_eq!(rows.len(), self.ranks(), "a pass keeps the number of ranks");
        Self {
            name: self.name.clone(),
            placement: self.placement.clone(),
            microbatches: self.microbatches.clone(),
            rows,
            skips: self.skips.clone(),
            first_trained: self.first_trained,
        }
    }

    /// The same plan without idle cells.
    pub fn without_idle(&self) -> Self {
        let kept = |row: &Vec<Action>| row.iter().copied().filter(|action| !action.is_idle()).collect();
        self.with_rows(self.rows.iter().map(kept).collect())
    }

    /// The name of the schedule that built it, or of the file it came from.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The rank of every stage.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The skip edges, sorted.
    pub fn skips(&self) -> &[SkipEdge] {
        &self.skips
    }

    /// The first stage that trains: stages before it have no backward, and it has `W` alone, as no gradient leaves it
    /// towards the input. 0 if all stages have backwards, or none has. See [`Plan::train_from`].
    pub fn first_trained(&self) -> usize {
        self.first_trained
    }

    /// The same rows for a model that trains from this stage on.
    pub(crate) fn with_first_trained(self, first_trained: usize) -> Self {
        Self { first_trained, ..self }
    }

    /// The first stage with a backward, if that is `W` alone; otherwise 0.
    fn first_alone(&self) -> usize {
        let backwards = || self.rows.iter().flatten().flat_map(|action| action.tasks());
        let backwards = || backwards().filter(|task| task.op().is_backward());
        let first = backwards().map(|task| task.stage().index()).min().unwrap_or(0);
        let whole = |task: Task| task.stage().index() == first && task.op() != Op::BackwardWeight;
        if backwards().any(whole) { 0 } else { first }
    }

    /// Returns true if a task begins its stage's backward, with the gradient of the stage's output: `B`, `I`, and `W`
    /// of the first stage that trains, if there are stages before it.
    #[inline]
    pub fn begins_backward(&self, task: impl Into<Task>) -> bool {
        let task = task.into();
        task.op().gives_input_gradient() || task.op() == Op::BackwardWeight && self.trains_alone(task.stage())
    }

    /// Returns true if a stage is the first one that trains, with stages before it, so that its backward is `W` alone.
    #[inline]
    pub(crate) fn trains_alone(&self, stage: StageId) -> bool {
        self.first_trained > 0 && stage.index() == self.first_trained
    }

    /// Returns true if a stage sends the gradients of its inputs on: it trains, and is not the first one that does.
    pub(crate) fn gives_gradients(&self, stage: StageId) -> bool {
        stage.index() > self.first_trained
    }

    /// The neighbour's computation whose value a computation uses: the `F` of the stage before, or the `B` of the stage
    /// after, which may be `I` or `W` in this plan ([`Plan::as_written`]). `None` at the ends of the model.
    pub(crate) fn input_of(&self, task: MicrobatchTask) -> Option<MicrobatchTask> {
        let (stage, op) = match task.op() {
            Op::Forward => (task.stage().previous()?, Op::Forward),
            _ if self.begins_backward(task) => (self.placement.next(task.stage())?, Op::Backward),
            _ => return None,
        };
        Some(task.with(stage, op))
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.placement.ranks()
    }

    /// The number of stages of the model (of one route).
    pub fn stages(&self) -> usize {
        self.placement.stages()
    }

    /// The number of microbatches of each route.
    pub fn microbatches(&self) -> &[usize] {
        &self.microbatches
    }

    /// The number of microbatches of a step, over all routes.
    pub fn total_microbatches(&self) -> usize {
        self.microbatches.iter().sum()
    }

    /// The position in the batch of a route's microbatch: route 0 takes the first ones.
    pub fn index_in_batch(&self, stage: StageId, microbatch: usize) -> usize {
        self.microbatches[..stage.route()].iter().sum::<usize>() + microbatch
    }

    /// The actions of every rank, one row per rank.
    pub fn rows(&self) -> &[Vec<Action>] {
        &self.rows
    }

    /// The actions of one rank.
    pub fn row(&self, rank: usize) -> &[Action] {
        &self.rows[rank]
    }

    /// Every task of a rank in running order; a fused action counts as its two tasks.
    pub fn tasks(&self, rank: usize) -> impl Iterator<Item = Task> + '_ {
        self.rows[rank].iter().flat_map(|a| a.tasks())
    }

    /// A needed task as this plan has it: `I` instead of `B` if the plan splits that backward, and `W` if it is `W`
    /// alone.
    pub(crate) fn as_written(&self, task: Task) -> Task {
        let split = task.of_microbatch().filter(|task| task.op() == Op::Backward);
        let written = if self.trains_alone(task.stage()) { Op::BackwardWeight } else { Op::BackwardInput };
        let split = split.map(|backward| Task::from(backward.with(backward.stage(), written)));
        let rank = self.placement().rank_of(task.stage());
        let has = |wanted: Task| self.tasks(rank).any(|task| task == wanted);
        // Without its `I`, a lone `W` shows the split as well.
        let weight = task.of_microbatch().map(|task| Task::from(task.with(task.stage(), Op::BackwardWeight)));
        let is_split = |split: &Task| has(*split) || (!has(task) && weight.is_some_and(has));
        split.filter(is_split).unwrap_or(task)
    }

    /// Returns true if any task of the plan satisfies the test.
    pub fn any_task(&self, test: impl Fn(Task) -> bool) -> bool {
        self.rows.iter().flatten().any(|action| match *action {
            Action::Idle => false,
            Action::Single(task) => test(task),
            Action::Overlap(first, second) => test(first.into()) || test(second.into()),
        })
    }

    /// The first rank whose first cells, `cells` of them, do not have this task.
    pub(crate) fn first_without(&self, task: Task, cells: impl Fn(usize) -> usize) -> Option<usize> {
        let begun = |rank: usize| self.rows[rank][..cells(rank)].iter().flat_map(|a| a.tasks()).any(|t| t == task);
        (0..self.ranks()).find(|&rank| !begun(rank))
    }

    /// Returns true if it has sends and receives.
    pub fn is_lowered(&self) -> bool {
        self.any_task(|t| t.op().is_transfer())
    }

    /// Returns true if it is vocabulary parallel.
    pub fn has_vocabulary(&self) -> bool {
        self.any_task(|t| t.op().is_vocabulary())
    }

    /// Returns true if it has waits.
    pub fn has_waits(&self) -> bool {
        self.any_task(|t| t.op().is_wait())
    }

    /// Returns true if it has backwards. A plan without any is for evaluation.
    pub fn has_backward(&self) -> bool {
        self.any_task(|t| t.op().is_backward())
    }
}

/// Returns true if JSON leaves out the first stage that trains.
fn is_zero(first_trained: &usize) -> bool {
    *first_trained == 0
}
