//! The interpreter of one rank's row; see the numbered steps in the room's header.

use super::values::{Values, neighbour, produced, received, wanted};
use super::{ExecuteError, MicrobatchLoss, RankOutcome, Seeding};
use crate::link::{Activity, Link, LinkError, Message};
use crate::plan::{Action, CheckedPlan, Op, Placement, Plan, Stage, Task};
use crate::stage::{
    AnyTensor, Boundary, ErasedStage, ForwardCall, Gradients, LossPart, Microbatches, Outcome, Payload, Reduction,
    StageError,
};
use crate::trace::Event;
use burn::backend::{Dispatch, ops::FloatTensorOps};
use burn::tensor::{Device, Shape};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// How runs are carried out.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// The longest that any wait may take.
    pub deadline: Duration,
    /// Wait for the device after every compute task, so that events show what it took there.
    pub synchronize: bool,
    /// Run `W`s of one stage that stand side by side at once, where that is faster.
    pub merge_weights: bool,
    /// How fused actions are run.
    pub fused: FusedActions,
}

/// How an action that fuses a forward with a backward is run.
///
/// The contract of interleaving (`overlapped_forward_backward` elsewhere): both parts' inputs are awaited first; then
/// their operations are handed to the device alternately, from one thread, so that both end together; results are
/// those of running one after the other, bit for bit. A device that computes asynchronously can then overlap what
/// either part waits for (communication inside a layer, small kernels) with the other. Stages that were not captured
/// cannot be taken apart: they run one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FusedActions {
    /// Interleaved on devices that compute asynchronously (all but Flex), else in sequence.
    #[default]
    Auto,
    /// One after the other, in the plan's order.
    Sequence,
    /// Interleaved wherever both stages were captured.
    Interleave,
}

/// One run: which plan over which batch, by which clock.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The plan.
    pub plan: &'a CheckedPlan,
    /// The batch.
    pub batch: &'a Microbatches,
    /// What the loss means, and how backwards are seeded.
    pub seeding: Seeding,
    /// Train, or evaluate: no autodiff, outputs are kept.
    pub train: bool,
    /// When the step began, the same for all ranks.
    pub began: Instant,
}

/// One rank: its stages and its end of the link.
pub struct Executor {
    pub(super) link: Box<dyn Link>,
    pub(super) stages: BTreeMap<Stage, Box<dyn ErasedStage>>,
    pub(super) device: Device,
    pub(super) options: RunOptions,
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
        stages: BTreeMap<Stage, Box<dyn ErasedStage>>,
        device: Device,
        options: RunOptions,
    ) -> Self {
        Self { link, stages, device, options }
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
    pub fn stages(&mut self) -> &mut BTreeMap<Stage, Box<dyn ErasedStage>> {
        &mut self.stages
    }

    /// The rank's stages with its end of the link.
    pub(crate) fn stages_and_link(&mut self) -> (&mut BTreeMap<Stage, Box<dyn ErasedStage>>, &mut dyn Link) {
        (&mut self.stages, self.link.as_mut())
    }

    /// The longest that any wait may take.
    pub fn patience(&self) -> Duration {
        self.options.deadline
    }

    /// When a wait that starts now must end.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.options.deadline
    }

    /// Runs this rank's row of the plan. On an error all other ranks are told, and everything held is let go of.
    ///
    /// # Errors
    /// [`ExecuteError`] names rank, stage, microbatch and operation of what went wrong, here or elsewhere.
    pub fn run(&mut self, run: Run<'_>) -> Result<RankOutcome, ExecuteError> {
        let mut pass = Pass {
            run,
            values: Values::default(),
            outcome: RankOutcome { peak_held_bytes: Some(0), ..RankOutcome::default() },
            losses: BTreeMap::new(),
            started: Duration::ZERO,
        };
        let result = self.run_row(&mut pass).and_then(|()| self.gather_losses(&mut pass));
        self.link.announce(Activity::Idle);
        if let Err(error) = result {
            self.fail(&error);
            return Err(error);
        }
        Ok(pass.outcome)
    }

    /// Tells the other ranks of an error that began here, and lets go of everything held.
    pub fn fail(&mut self, error: &ExecuteError) {
        if !matches!(error, ExecuteError::Link { source: LinkError::Peer(_), .. }) {
            self.link.abort(error.to_string());
        }
        self.stages.values_mut().for_each(|stage| stage.clear());
    }

    pub(super) fn run_task(&mut self, pass: &mut Pass<'_>, plan: &Plan, task: Task) -> Result<(), ExecuteError> {
        let placement = plan.placement();
        let Some(microbatch) = task.microbatch() else {
            return Err(ExecuteError::Unsupported { rank: self.rank(), task });
        };
        match task.op() {
            Op::SendForward | Op::SendBackward => self.send(pass, placement, task, microbatch),
            Op::ReceiveForward | Op::ReceiveBackward => {
                let from = neighbour(placement, task, matches!(task.op(), Op::ReceiveForward));
                let (from, header) = from.zip(received(task, microbatch)).ok_or_else(|| self.no_input(task))?;
                pass.values.post(from, header);
                Ok(())
            }
            Op::Forward => self.forward(pass, plan, task, microbatch),
            Op::Backward | Op::BackwardInput => self.backward(pass, plan, task, microbatch),
            Op::BackwardWeight => {
                let sample = plan.sample(task.stage(), microbatch);
                self.guarded(task, |stage| stage.backward_weight(sample))
            }
            Op::WaitReceiveForward => self.arrive(pass, placement, task, Op::Forward, microbatch).map(drop),
            Op::WaitReceiveBackward => self.arrive(pass, placement, task, Op::Backward, microbatch).map(drop),
            // `Link::send` returns once the payload may be let go of: there is nothing left to wait for.
            Op::WaitSendForward | Op::WaitSendBackward => Ok(()),
            Op::Unshard | Op::Reshard | Op::ReduceGrad | Op::WaitUnshard | Op::WaitReduceGrad => {
                Err(ExecuteError::Unsupported { rank: self.rank(), task })
            }
        }
    }

    fn send(
        &mut self,
        pass: &mut Pass<'_>,
        placement: &Placement,
        task: Task,
        microbatch: usize,
    ) -> Result<(), ExecuteError> {
        let header = produced(placement, task, microbatch).ok_or_else(|| self.no_input(task))?;
        let payload = pass.values.take_outgoing(header).ok_or_else(|| self.no_input(task))?;
        let deadline = self.deadline();
        let sent = self.link.send(placement.rank_of(header.stage), Message { header, payload }, deadline);
        sent.map_err(|source| self.link_error(task, source))
    }

    fn forward(&mut self, pass: &mut Pass<'_>, plan: &Plan, task: Task, microbatch: usize) -> Result<(), ExecuteError> {
        let call = self.forward_call(pass, plan, task, microbatch)?;
        let sample = call.sample;
        let (output, loss) = if pass.run.train {
            match self.guarded(task, |stage| stage.forward(call))? {
                Outcome::Output(output) => (Some(output), None),
                Outcome::Loss(loss) => (None, Some(*loss)),
            }
        } else {
            let (output, loss) = self.guarded(task, |stage| stage.evaluate(call))?;
            (Some(output), loss)
        };
        self.forwarded(pass, plan.placement(), task, sample, output, loss);
        Ok(())
    }

    /// What a forward gets, awaited.
    pub(super) fn forward_call(
        &mut self,
        pass: &mut Pass<'_>,
        plan: &Plan,
        task: Task,
        microbatch: usize,
    ) -> Result<ForwardCall, ExecuteError> {
        let (placement, stage) = (plan.placement(), task.stage());
        let sample = plan.sample(stage, microbatch);
        let input = match stage.previous() {
            None => self.brought(pass.run.batch.input(sample))?,
            Some(_) => self.take(pass, placement, task, microbatch)?,
        };
        let ends_route = placement.next(stage).is_none();
        let extra = self.extra(pass.run.batch, stage, sample)?;
        let target = match ends_route {
            true => pass.run.batch.target(sample).map_err(|source| self.batch_error(source))?,
            false => None,
        };
        let target = target.map(|target| self.link.bring(target));
        let wants_input_gradient = stage.index() > 0;
        Ok(ForwardCall { sample, input, extra, target, ends_route, wants_input_gradient })
    }

    /// Keeps what a forward made.
    pub(super) fn forwarded(
        &self,
        pass: &mut Pass<'_>,
        placement: &Placement,
        task: Task,
        sample: usize,
        output: Option<Payload>,
        loss: Option<LossPart>,
    ) {
        if let Some(loss) = loss {
            pass.losses.insert(sample, loss);
        }
        let header = task.microbatch().and_then(|microbatch| produced(placement, task, microbatch));
        match (output, header) {
            (Some(output), Some(header)) => {
                let bytes = pass.outcome.message_bytes.entry(task.stage()).or_default();
                *bytes = output.bytes().max(*bytes);
                pass.values.keep(placement, self.rank(), header, output);
            }
            (Some(output), None) => pass.outcome.outputs.push((sample, output)),
            (None, _) => {}
        }
    }

    fn backward(
        &mut self,
        pass: &mut Pass<'_>,
        plan: &Plan,
        task: Task,
        microbatch: usize,
    ) -> Result<(), ExecuteError> {
        let seeds = self.seeds(pass, plan, task, microbatch)?;
        let sample = plan.sample(task.stage(), microbatch);
        let gradients = match task.op() {
            Op::BackwardInput => self.guarded(task, |stage| stage.backward_input(sample, seeds))?,
            _ => self.guarded(task, |stage| stage.backward(sample, seeds))?,
        };
        self.backwarded(pass, plan.placement(), task, gradients);
        Ok(())
    }

    /// The gradients that a backward starts from, awaited.
    pub(super) fn seeds(
        &mut self,
        pass: &mut Pass<'_>,
        plan: &Plan,
        task: Task,
        microbatch: usize,
    ) -> Result<Gradients, ExecuteError> {
        let (placement, stage) = (plan.placement(), task.stage());
        match placement.next(stage) {
            None => Ok(vec![Some(self.loss_seed(pass, task, plan.sample(stage, microbatch))?)]),
            Some(_) => {
                let payload = self.take(pass, placement, task, microbatch)?;
                let read = Gradients::from_payload(payload).map_err(StageError::Input);
                read.map_err(|source| self.stage_error(task, source))
            }
        }
    }

    /// Keeps what a backward made.
    pub(super) fn backwarded(&self, pass: &mut Pass<'_>, placement: &Placement, task: Task, gradients: Gradients) {
        let header = task.microbatch().and_then(|microbatch| produced(placement, task, microbatch));
        if let Some(header) = header {
            pass.values.keep(placement, self.rank(), header, gradients.into_payload());
        }
    }

    /// The seed of a loss: the microbatch's share, with the loss's element type.
    fn loss_seed(&self, pass: &Pass<'_>, task: Task, sample: usize) -> Result<AnyTensor, ExecuteError> {
        let loss = pass.losses.get(&sample).ok_or_else(|| self.stage_error(task, StageError::NotHeld))?;
        let seed = pass.run.seeding.seed(pass.run.batch, sample);
        let dispatch = loss.value.as_dispatch();
        let device = loss.value.device();
        let dtype = burn::backend::TensorMetadata::dtype(dispatch).into();
        let full = Dispatch::float_full(Shape::new([1]), seed.into(), device.as_dispatch(), dtype);
        Ok(AnyTensor::from_dispatch(full))
    }

    /// Waits until the neighbour's product that `user` needs is in the inbox; returns the neighbour's rank.
    fn arrive(
        &mut self,
        pass: &mut Pass<'_>,
        placement: &Placement,
        task: Task,
        user: Op,
        microbatch: usize,
    ) -> Result<usize, ExecuteError> {
        let user = Task::new(task.stage(), user, microbatch);
        let from = neighbour(placement, user, user.op() == Op::Forward).ok_or_else(|| self.no_input(task))?;
        let (header, deadline) = (wanted(user, microbatch), self.deadline());
        self.link.announce(Activity::Waiting(header, from));
        let here = pass.values.arrive(self.link.as_mut(), header, from, deadline);
        let here = here.map_err(|source| self.link_error(task, source))?;
        self.link.announce(Activity::Task(task));
        if here { Ok(from) } else { Err(self.no_input(task)) }
    }

    /// The neighbour's product that a task needs.
    fn take(
        &mut self,
        pass: &mut Pass<'_>,
        placement: &Placement,
        task: Task,
        microbatch: usize,
    ) -> Result<Payload, ExecuteError> {
        let start = pass.run.began.elapsed();
        let from = self.arrive(pass, placement, task, task.op(), microbatch)?;
        let taken = pass.values.take(wanted(task, microbatch)).ok_or_else(|| self.no_input(task))?;
        if from != self.rank() {
            let op = if task.op() == Op::Forward { Op::ReceiveForward } else { Op::ReceiveBackward };
            pass.note(self.rank(), Action::Single(Task::new(task.stage(), op, microbatch)), start);
        }
        // The task itself starts when its input is here: the wait before is the receive's.
        pass.started = pass.run.began.elapsed();
        Ok(taken)
    }

    fn extra(&self, batch: &Microbatches, stage: Stage, sample: usize) -> Result<Payload, ExecuteError> {
        let held = self.stages.get(&stage).ok_or(ExecuteError::NoStage { rank: self.rank(), stage })?;
        self.brought(batch.extra(stage.index(), &held.extras(), sample))
    }

    fn brought(&self, piece: Result<Payload, crate::stage::MicrobatchError>) -> Result<Payload, ExecuteError> {
        piece.map(|piece| self.link.bring(piece)).map_err(|source| self.batch_error(source))
    }

    /// Runs user code of the task's stage, and waits for the device where that was asked for.
    pub(super) fn guarded<T>(
        &mut self,
        task: Task,
        f: impl FnOnce(&mut dyn ErasedStage) -> Result<T, StageError>,
    ) -> Result<T, ExecuteError> {
        let result = self.caught(task, f)?;
        self.synchronize(task)?;
        Ok(result)
    }

    /// Waits for the device where that was asked for.
    pub(super) fn synchronize(&mut self, task: Task) -> Result<(), ExecuteError> {
        if !self.options.synchronize {
            return Ok(());
        }
        self.device.sync().map_err(|e| self.stage_error(task, StageError::Device(e.to_string())))
    }

    /// Runs user code of the task's stage: a panic becomes an error with its name and place.
    pub(super) fn caught<T>(
        &mut self,
        task: Task,
        f: impl FnOnce(&mut dyn ErasedStage) -> Result<T, StageError>,
    ) -> Result<T, ExecuteError> {
        let rank = self.rank();
        let stage = self.stages.get_mut(&task.stage()).ok_or(ExecuteError::NoStage { rank, stage: task.stage() })?;
        match catch_unwind(AssertUnwindSafe(|| f(stage.as_mut()))) {
            Ok(result) => result.map_err(|source| self.stage_error(task, source)),
            Err(panic) => {
                let (stage, microbatch) = (task.stage(), task.microbatch().unwrap_or(0));
                let message = panic_message(panic.as_ref());
                Err(ExecuteError::Panic { rank, stage, microbatch, op: task.op(), message })
            }
        }
    }

    /// Reads this rank's losses from the device and gives every rank all of them.
    fn gather_losses(&mut self, pass: &mut Pass<'_>) -> Result<(), ExecuteError> {
        let rank = self.rank();
        self.link.announce(Activity::Gathering);
        let mut numbers = Vec::new();
        for (&sample, part) in &pass.losses {
            let read = part.read().and_then(|loss| Ok((loss, pass.weight(sample, part)?)));
            let (loss, weight) = read.map_err(|message| ExecuteError::Device { rank, message })?;
            numbers.extend([sample as f64, loss, weight]);
        }
        let deadline = self.deadline();
        let table = self.link.all_gather(numbers, deadline);
        let table = table.map_err(|source| ExecuteError::Link { rank, task: None, source })?;
        let row = |n: &[f64]| MicrobatchLoss { sample: n[0] as usize, loss: n[1], weight: n[2] };
        pass.outcome.losses = table.iter().flat_map(|numbers| numbers.chunks_exact(3).map(row)).collect();
        pass.outcome.losses.sort_by_key(|loss| loss.sample);
        Ok(())
    }

    pub(super) fn stage_error(&self, task: Task, source: StageError) -> ExecuteError {
        let microbatch = task.microbatch().unwrap_or(0);
        ExecuteError::Stage { rank: self.rank(), stage: task.stage(), microbatch, op: task.op(), source }
    }

    fn link_error(&self, task: Task, source: LinkError) -> ExecuteError {
        ExecuteError::Link { rank: self.rank(), task: Some(task), source }
    }

    fn batch_error(&self, source: crate::stage::MicrobatchError) -> ExecuteError {
        ExecuteError::Batch { rank: self.rank(), source }
    }

    fn no_input(&self, task: Task) -> ExecuteError {
        ExecuteError::NoInput { rank: self.rank(), task }
    }
}

/// What a run gathers.
pub(super) struct Pass<'a> {
    pub(super) run: Run<'a>,
    values: Values,
    pub(super) outcome: RankOutcome,
    losses: BTreeMap<usize, LossPart>,
    /// When the current task began, by the step's clock.
    pub(super) started: Duration,
}

impl Pass<'_> {
    pub(super) fn note(&mut self, rank: usize, action: Action, start: Duration) {
        let (start, end) = (start.as_secs_f64(), self.run.began.elapsed().as_secs_f64());
        self.outcome.events.push(Event { rank, action, start, end });
    }

    /// What a microbatch's loss weighs in the batch's.
    fn weight(&self, sample: usize, part: &LossPart) -> Result<f64, String> {
        match (self.run.seeding.reduction, &part.weight) {
            (Reduction::Mean, _) => Ok(self.run.batch.size(sample) as f64),
            (Reduction::Sum, _) => Ok(1.0),
            (Reduction::Weighted, Some(weight)) => weight.read(),
            (Reduction::Weighted, None) => {
                Err("the reduction is `Weighted`, but the loss came without a weight; return `Loss::weighted`".into())
            }
        }
    }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "(no message)".to_owned())
}
