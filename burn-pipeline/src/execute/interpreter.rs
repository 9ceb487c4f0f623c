//! The interpreter of one rank's row; see the numbered steps in the room's header.

use super::inspect::SpecCheck;
use super::run_state::RunState;
use super::skips::outgoing;
use super::values::{Values, neighbour, produced, received};
use super::{ExecuteError, RankOutcome, Run, RunOptions};
use crate::group::{Grid, Group};
use crate::link::{Activity, Link, LinkError, Message};
use crate::plan::{MicrobatchTask, Op, Placement, Plan, StageId, Task};
use crate::stage::{
    Boundary, ErasedStage, ForwardCall, ForwardOutput, Gradients, LossPart, Payload, StageError, StagePort,
};
use burn::tensor::Device;
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// One rank: its stages and its end of the link.
pub struct Executor {
    pub(super) link: Box<dyn Link>,
    pub(super) stages: BTreeMap<StageId, Box<dyn ErasedStage>>,
    pub(super) device: Device,
    pub(super) options: RunOptions,
    pub(super) group: Group,
    spec_check: SpecCheck,
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executor").field("rank", &self.link.rank()).field("device", &self.device).finish()
    }
}

impl Executor {
    /// A rank that holds these stages on this device.
    pub fn new(
        link: Box<dyn Link>,
        stages: BTreeMap<StageId, Box<dyn ErasedStage>>,
        device: Device,
        options: RunOptions,
    ) -> Self {
        let group = Group::new(Grid::new(link.rank(), 1), std::iter::empty());
        Self { link, stages, device, options, group, spec_check: SpecCheck::Off }
    }

    /// The same rank as one of this many data-parallel replicas; see [`Grid`] for which. The link joins all of them.
    pub fn among(mut self, replicas: usize) -> Self {
        let stages = self.stages.iter().map(|(&stage, held)| (stage, held.as_ref()));
        self.group = Group::new(Grid::new(self.link.rank(), replicas), stages);
        self
    }

    /// Its place among the ranks of its pipeline, and among replicas.
    pub fn grid(&self) -> Grid {
        self.group.grid()
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.link.rank()
    }

    /// The rank's end of the link.
    pub fn link(&mut self) -> &mut dyn Link {
        self.link.as_mut()
    }

    /// The rank's device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The rank's stages, in model order.
    pub fn stages(&mut self) -> &mut BTreeMap<StageId, Box<dyn ErasedStage>> {
        &mut self.stages
    }

    /// What is done with the forms of what crosses stage boundaries in training.
    pub fn spec_check(&self) -> &SpecCheck {
        &self.spec_check
    }

    /// Changes what is done with them; what was learned is taken out here.
    pub fn spec_check_mut(&mut self) -> &mut SpecCheck {
        &mut self.spec_check
    }

    /// The rank's stages with its end of the link.
    pub(crate) fn stages_and_link(&mut self) -> (&mut BTreeMap<StageId, Box<dyn ErasedStage>>, &mut dyn Link) {
        (&mut self.stages, self.link.as_mut())
    }

    /// The longest that any wait may take.
    pub fn timeout(&self) -> Duration {
        self.options.timeout
    }

    /// When a wait that starts now must end.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.options.timeout
    }

    /// Runs this rank's row of the plan. On an error all other ranks are told, and everything held is let go of.
    ///
    /// # Errors
    /// [`ExecuteError`] names rank, stage, microbatch and operation of what went wrong, here or elsewhere.
    pub fn run(&mut self, run: Run<'_>) -> Result<RankOutcome, ExecuteError> {
        let mut state = RunState {
            run,
            values: Values::default(),
            outcome: RankOutcome { peak_held_bytes: Some(0), ..RankOutcome::default() },
            losses: BTreeMap::new(),
            pieces: HashMap::new(),
            open: HashMap::new(),
            started: Duration::ZERO,
        };
        let ready = self.gather_unplanned(&run);
        let row = ready.and_then(|()| if run.share.empty { Ok(()) } else { self.run_row(&mut state) });
        let result = row.and_then(|()| self.end_exchanges(&mut state)).and_then(|()| self.gather_losses(&mut state));
        self.link.announce(Activity::Idle);
        if let Err(error) = result {
            self.fail(&error);
            return Err(error);
        }
        Ok(state.outcome)
    }

    /// Tells the other ranks of an error that began here, and lets go of everything held.
    pub fn fail(&mut self, error: &ExecuteError) {
        if !matches!(error, ExecuteError::Link { source: LinkError::Peer(_), .. }) {
            self.link.abort(error.to_string());
        }
        self.stages.values_mut().for_each(|stage| stage.clear());
        self.group.forget();
    }

    pub(super) fn run_task(&mut self, state: &mut RunState<'_>, plan: &Plan, task: Task) -> Result<(), ExecuteError> {
        let placement = plan.placement();
        let Some(task) = task.of_microbatch() else { return self.exchange(state, task) };
        match task.op() {
            Op::SendForward | Op::SendBackward => self.send(state, placement, task),
            Op::ReceiveForward | Op::ReceiveBackward => {
                let from = neighbour(placement, task, matches!(task.op(), Op::ReceiveForward));
                let from = from.map(|place| self.grid().rank_of(place));
                let (from, header) = from.zip(received(task)).ok_or_else(|| self.no_input(task))?;
                state.values.post(from, header);
                Ok(())
            }
            Op::Forward => self.forward(state, plan, task),
            Op::Backward | Op::BackwardInput => self.backward(state, plan, task),
            Op::BackwardWeight => {
                let index = state.run.index(task.stage(), task.microbatch());
                self.guarded(task, |stage| stage.backward_weight(index))
            }
            Op::WaitReceiveForward | Op::WaitReceiveBackward if task.is_skip() => {
                self.arrive_past(state, placement, task)
            }
            Op::WaitReceiveForward => self.arrive(state, placement, task, Op::Forward).map(drop),
            Op::WaitReceiveBackward => self.arrive(state, placement, task, Op::Backward).map(drop),
            // `Link::send` returns once the payload may be let go of: there is nothing left to wait for.
            Op::WaitSendForward | Op::WaitSendBackward => Ok(()),
            Op::Unshard | Op::Reshard | Op::ReduceGrad | Op::WaitUnshard | Op::WaitReduceGrad => {
                self.exchange(state, task.into())
            }
        }
    }

    fn send(
        &mut self,
        state: &mut RunState<'_>,
        placement: &Placement,
        task: MicrobatchTask,
    ) -> Result<(), ExecuteError> {
        let header = outgoing(placement, task).ok_or_else(|| self.no_input(task))?;
        let payload = state.values.take_outgoing(header).ok_or_else(|| self.no_input(task))?;
        let deadline = self.deadline();
        let to = self.grid().rank_of(placement.rank_of(header.stage));
        self.note_sent(to, header, &payload);
        let sent = self.link.send(to, Message { header, payload }, deadline);
        sent.map_err(|source| self.link_error(task, source))
    }

    fn forward(&mut self, state: &mut RunState<'_>, plan: &Plan, task: MicrobatchTask) -> Result<(), ExecuteError> {
        let call = self.forward_call(state, plan, task)?;
        let (output, loss) = if state.run.train {
            match self.guarded(task, |stage| stage.forward(call))? {
                ForwardOutput::Activations(output) => (Some(output), None),
                ForwardOutput::Loss(loss) => (None, Some(*loss)),
            }
        } else {
            let (output, loss) = self.guarded(task, |stage| stage.evaluate(call))?;
            (Some(output), loss)
        };
        self.forwarded(state, plan, task, output, loss)
    }

    /// What a forward gets, awaited.
    pub(super) fn forward_call(
        &mut self,
        state: &mut RunState<'_>,
        plan: &Plan,
        task: MicrobatchTask,
    ) -> Result<ForwardCall, ExecuteError> {
        let (placement, stage) = (plan.placement(), task.stage());
        let index = state.run.index(stage, task.microbatch());
        let input = match stage.previous() {
            None => self.brought(state.run.batch.input(index))?,
            Some(_) => self.take(state, placement, task)?,
        };
        let input = self.join_input(state, plan, task, input)?;
        if state.run.train {
            self.inspect(task, StagePort::Input, || input.clone())?;
        }
        let ends_route = placement.next(stage).is_none();
        let extra = self.extra(&state.run, stage, index)?;
        let target = match ends_route {
            true => state.run.batch.target(index).map_err(|source| self.batch_error(source))?,
            false => None,
        };
        let target = target.map(|target| self.link.bring(target));
        let wants_input_gradient = stage.index() > 0;
        Ok(ForwardCall { microbatch: index, input, extra, target, ends_route, wants_input_gradient })
    }

    /// Keeps what a forward made.
    pub(super) fn forwarded(
        &mut self,
        state: &mut RunState<'_>,
        plan: &Plan,
        task: MicrobatchTask,
        output: Option<Payload>,
        loss: Option<LossPart>,
    ) -> Result<(), ExecuteError> {
        let index = state.run.index(task.stage(), task.microbatch());
        if let (true, Some(output)) = (state.run.train, &output) {
            self.inspect(task, StagePort::Output, || output.clone())?;
        }
        let split = |output| self.split_output(state, plan, task, output);
        let output = output.map(split).transpose()?;
        if let Some(loss) = loss {
            state.losses.insert(index, loss);
        }
        match (output, produced(plan.placement(), task)) {
            (Some(output), Some(header)) => {
                let bytes = state.outcome.message_bytes.entry(task.stage()).or_default();
                *bytes = output.bytes().max(*bytes);
                state.values.keep(plan.placement(), self.grid().pipeline_rank(), header, output);
            }
            (Some(output), None) => state.outcome.outputs.push((index, output)),
            (None, _) => {}
        }
        Ok(())
    }

    fn backward(&mut self, state: &mut RunState<'_>, plan: &Plan, task: MicrobatchTask) -> Result<(), ExecuteError> {
        let seeds = self.seeds(state, plan, task)?;
        let index = state.run.index(task.stage(), task.microbatch());
        let gradients = match task.op() {
            Op::BackwardInput => self.guarded(task, |stage| stage.backward_input(index, seeds))?,
            _ => self.guarded(task, |stage| stage.backward(index, seeds))?,
        };
        self.backwarded(state, plan, task, gradients)
    }

    /// The gradients that a backward starts from, awaited.
    pub(super) fn seeds(
        &mut self,
        state: &mut RunState<'_>,
        plan: &Plan,
        task: MicrobatchTask,
    ) -> Result<Gradients, ExecuteError> {
        let (placement, stage) = (plan.placement(), task.stage());
        if placement.next(stage).is_none() {
            return Ok(vec![Some(self.loss_seed(state, task, state.run.index(stage, task.microbatch()))?)]);
        }
        let payload = self.take(state, placement, task)?;
        let seeds = Gradients::from_payload(payload).map_err(StageError::Input);
        let seeds = seeds.map_err(|source| self.stage_error(task, source))?;
        let seeds = self.join_gradients(state, plan, task, seeds)?;
        self.inspect(task, StagePort::OutputGradient, || seeds.clone().into_payload())?;
        Ok(seeds)
    }

    /// Keeps what a backward made.
    pub(super) fn backwarded(
        &mut self,
        state: &mut RunState<'_>,
        plan: &Plan,
        task: MicrobatchTask,
        gradients: Gradients,
    ) -> Result<(), ExecuteError> {
        self.inspect(task, StagePort::InputGradient, || gradients.clone().into_payload())?;
        let gradients = self.split_gradients(state, plan, task, gradients);
        if let Some(header) = produced(plan.placement(), task) {
            state.values.keep(plan.placement(), self.grid().pipeline_rank(), header, gradients.into_payload());
        }
        Ok(())
    }

    /// Runs user code of the task's stage, and waits for the device where that was asked for.
    pub(super) fn guarded<T>(
        &mut self,
        task: MicrobatchTask,
        f: impl FnOnce(&mut dyn ErasedStage) -> Result<T, StageError>,
    ) -> Result<T, ExecuteError> {
        let result = self.caught(task, f)?;
        self.synchronize(task)?;
        Ok(result)
    }

    /// Waits for the device where that was asked for.
    pub(super) fn synchronize(&mut self, task: MicrobatchTask) -> Result<(), ExecuteError> {
        if !self.options.synchronize {
            return Ok(());
        }
        self.device.sync().map_err(|e| self.stage_error(task, StageError::Device(e.to_string())))
    }

    /// Runs user code of the task's stage: a panic becomes an error with its name and place.
    pub(super) fn caught<T>(
        &mut self,
        task: MicrobatchTask,
        f: impl FnOnce(&mut dyn ErasedStage) -> Result<T, StageError>,
    ) -> Result<T, ExecuteError> {
        let rank = self.rank();
        let stage = self.stages.get_mut(&task.stage()).ok_or(ExecuteError::NoStage { rank, stage: task.stage() })?;
        match catch_unwind(AssertUnwindSafe(|| f(stage.as_mut()))) {
            Ok(result) => result.map_err(|source| self.stage_error(task, source)),
            Err(panic) => {
                let (stage, microbatch) = (task.stage(), task.microbatch());
                let message = panic_message(panic.as_ref());
                Err(ExecuteError::Panic { rank, stage, microbatch, op: task.op(), message })
            }
        }
    }

    pub(super) fn stage_error(&self, task: MicrobatchTask, source: StageError) -> ExecuteError {
        let microbatch = task.microbatch();
        ExecuteError::Stage { rank: self.rank(), stage: task.stage(), microbatch, op: task.op(), source }
    }

    pub(super) fn link_error(&self, task: impl Into<Task>, source: LinkError) -> ExecuteError {
        ExecuteError::Link { rank: self.rank(), task: Some(task.into()), source }
    }

    pub(super) fn batch_error(&self, source: crate::stage::MicrobatchError) -> ExecuteError {
        ExecuteError::Batch { rank: self.rank(), source }
    }

    pub(super) fn no_input(&self, task: MicrobatchTask) -> ExecuteError {
        ExecuteError::NoInput { rank: self.rank(), task: task.into() }
    }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "(no message)".to_owned())
}
