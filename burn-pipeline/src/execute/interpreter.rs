//! The interpreter of one rank's row; see the numbered steps in the room's header.

use super::inspect::Inspection;
use super::pass::Pass;
use super::skips::outgoing;
use super::values::{Values, neighbour, produced, received, wanted};
use super::{ExecuteError, MicrobatchLoss, RankOutcome, Seeding};
use crate::link::{Activity, Link, LinkError, Message};
use crate::plan::{CheckedPlan, Op, Placement, Plan, Stage, Task};
use crate::stage::{
    AnyTensor, Boundary, ErasedStage, ForwardCall, Gradients, Microbatches, Outcome, Payload, Port, StageError,
};
use burn::backend::{Dispatch, ops::FloatTensorOps};
use burn::tensor::{Device, Shape};
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// How runs are carried out.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// The longest that any wait may take.
    pub deadline: Duration,
    /// Wait for the device after every compute task, so that events show what it took there.
    pub synchronize: bool,
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
    link: Box<dyn Link>,
    stages: BTreeMap<Stage, Box<dyn ErasedStage>>,
    device: Device,
    options: RunOptions,
    inspection: Inspection,
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
        Self { link, stages, device, options, inspection: Inspection::Off }
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.link.rank()
    }

    /// The rank's end of the link.
    pub fn link(&mut self) -> &mut dyn Link {
        self.link.as_mut()
    }

    /// The rank's stages, in model order.
    pub fn stages(&mut self) -> &mut BTreeMap<Stage, Box<dyn ErasedStage>> {
        &mut self.stages
    }

    /// What is done with the forms of what crosses stage boundaries in training.
    pub fn inspection(&self) -> &Inspection {
        &self.inspection
    }

    /// Changes what is done with them; what was learned is taken out here.
    pub fn inspection_mut(&mut self) -> &mut Inspection {
        &mut self.inspection
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
            outcome: RankOutcome::default(),
            losses: BTreeMap::new(),
            pieces: HashMap::new(),
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

    fn run_row(&mut self, pass: &mut Pass<'_>) -> Result<(), ExecuteError> {
        let plan = pass.run.plan.plan();
        for action in plan.row(self.rank()) {
            for task in action.tasks() {
                self.link.announce(Activity::Task(task));
                let _span = tracing::trace_span!("task", rank = self.link.rank(), task = %task).entered();
                pass.started = pass.run.began.elapsed();
                self.run_task(pass, plan, task)?;
                let held: usize = self.stages.values().map(|stage| stage.held()).sum();
                pass.outcome.peak_held = pass.outcome.peak_held.max(held);
                pass.note(self.link.rank(), task, pass.started);
            }
        }
        Ok(())
    }

    fn run_task(&mut self, pass: &mut Pass<'_>, plan: &Plan, task: Task) -> Result<(), ExecuteError> {
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
            Op::Unshard | Op::Reshard | Op::ReduceGrad => Err(ExecuteError::Unsupported { rank: self.rank(), task }),
        }
    }

    fn send(
        &mut self,
        pass: &mut Pass<'_>,
        placement: &Placement,
        task: Task,
        microbatch: usize,
    ) -> Result<(), ExecuteError> {
        let header = outgoing(placement, task, microbatch).ok_or_else(|| self.no_input(task))?;
        let payload = pass.values.take_outgoing(header).ok_or_else(|| self.no_input(task))?;
        let deadline = self.deadline();
        let sent = self.link.send(placement.rank_of(header.stage), Message { header, payload }, deadline);
        sent.map_err(|source| self.link_error(task, source))
    }

    fn forward(&mut self, pass: &mut Pass<'_>, plan: &Plan, task: Task, microbatch: usize) -> Result<(), ExecuteError> {
        let (placement, stage) = (plan.placement(), task.stage());
        let sample = plan.sample(stage, microbatch);
        let input = match stage.previous() {
            None => self.brought(pass.run.batch.input(sample))?,
            Some(_) => self.take(pass, placement, task, microbatch)?,
        };
        let input = self.join_input(pass, plan, (task, microbatch), input)?;
        if pass.run.train {
            self.inspect(task, Port::Input, || input.clone())?;
        }
        let ends_route = placement.next(stage).is_none();
        let extra = self.extra(pass.run.batch, stage, sample)?;
        let target = match ends_route {
            true => pass.run.batch.target(sample).map_err(|source| self.batch_error(source))?,
            false => None,
        };
        let target = target.map(|target| self.link.bring(target));
        let wants_input_gradient = stage.index() > 0;
        let call = ForwardCall { sample, input, extra, target, ends_route, wants_input_gradient };
        let (output, loss) = if pass.run.train {
            match self.guarded(task, |stage| stage.forward(call))? {
                Outcome::Output(output) => (Some(output), None),
                Outcome::Loss(loss) => (None, Some(*loss)),
            }
        } else {
            let (output, loss) = self.guarded(task, |stage| stage.evaluate(call))?;
            (Some(output), loss)
        };
        if let (true, Some(output)) = (pass.run.train, &output) {
            self.inspect(task, Port::Output, || output.clone())?;
        }
        let split = |output| self.split_output(pass, plan, (task, microbatch), output);
        let output = output.map(split).transpose()?;
        if let Some(loss) = loss {
            pass.losses.insert(sample, loss);
        }
        match (output, produced(placement, task, microbatch)) {
            (Some(output), Some(header)) => {
                let bytes = pass.outcome.message_bytes.entry(stage).or_default();
                *bytes = output.bytes().max(*bytes);
                pass.values.keep(placement, self.rank(), header, output);
            }
            (Some(output), None) => pass.outcome.outputs.push((sample, output)),
            (None, _) => {}
        }
        Ok(())
    }

    fn backward(
        &mut self,
        pass: &mut Pass<'_>,
        plan: &Plan,
        task: Task,
        microbatch: usize,
    ) -> Result<(), ExecuteError> {
        let (placement, stage) = (plan.placement(), task.stage());
        let sample = plan.sample(stage, microbatch);
        let seeds: Gradients = match placement.next(stage) {
            None => vec![Some(self.loss_seed(pass, task, sample)?)],
            Some(_) => {
                let payload = self.take(pass, placement, task, microbatch)?;
                let read = Gradients::from_payload(payload).map_err(StageError::Input);
                read.map_err(|source| self.stage_error(task, source))?
            }
        };
        let seeds = self.join_gradients(pass, plan, (task, microbatch), seeds)?;
        if placement.next(stage).is_some() {
            self.inspect(task, Port::OutputGradient, || seeds.clone().into_payload())?;
        }
        let gradients = match task.op() {
            Op::BackwardInput => self.guarded(task, |stage| stage.backward_input(sample, seeds))?,
            _ => self.guarded(task, |stage| stage.backward(sample, seeds))?,
        };
        self.inspect(task, Port::InputGradient, || gradients.clone().into_payload())?;
        let gradients = self.split_gradients(pass, plan, (task, microbatch), gradients);
        if let Some(header) = produced(placement, task, microbatch) {
            pass.values.keep(placement, self.rank(), header, gradients.into_payload());
        }
        Ok(())
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

    /// The neighbour's product that a task needs.
    fn take(
        &mut self,
        pass: &mut Pass<'_>,
        placement: &Placement,
        task: Task,
        microbatch: usize,
    ) -> Result<Payload, ExecuteError> {
        let from = neighbour(placement, task, task.op() == Op::Forward).ok_or_else(|| self.no_input(task))?;
        let (header, deadline) = (wanted(task, microbatch), self.deadline());
        self.link.announce(Activity::Waiting(header, from));
        let start = pass.run.began.elapsed();
        let taken = pass.values.take(self.link.as_mut(), header, from, deadline);
        let taken = taken.map_err(|source| self.link_error(task, source))?.ok_or_else(|| self.no_input(task))?;
        self.link.announce(Activity::Task(task));
        if from != self.rank() {
            let op = if task.op() == Op::Forward { Op::ReceiveForward } else { Op::ReceiveBackward };
            pass.note(self.rank(), Task::new(task.stage(), op, microbatch), start);
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

    /// Runs user code of the task's stage: a panic becomes an error with its name and place.
    fn guarded<T>(
        &mut self,
        task: Task,
        f: impl FnOnce(&mut dyn ErasedStage) -> Result<T, StageError>,
    ) -> Result<T, ExecuteError> {
        let rank = self.rank();
        let stage = self.stages.get_mut(&task.stage()).ok_or(ExecuteError::NoStage { rank, stage: task.stage() })?;
        let result = match catch_unwind(AssertUnwindSafe(|| f(stage.as_mut()))) {
            Ok(result) => result.map_err(|source| self.stage_error(task, source))?,
            Err(panic) => {
                let (stage, microbatch) = (task.stage(), task.microbatch().unwrap_or(0));
                let message = panic_message(panic.as_ref());
                return Err(ExecuteError::Panic { rank, stage, microbatch, op: task.op(), message });
            }
        };
        if self.options.synchronize {
            let synced = self.device.sync();
            synced.map_err(|e| self.stage_error(task, StageError::Device(e.to_string())))?;
        }
        Ok(result)
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

    pub(super) fn link_error(&self, task: Task, source: LinkError) -> ExecuteError {
        ExecuteError::Link { rank: self.rank(), task: Some(task), source }
    }

    fn batch_error(&self, source: crate::stage::MicrobatchError) -> ExecuteError {
        ExecuteError::Batch { rank: self.rank(), source }
    }

    pub(super) fn no_input(&self, task: Task) -> ExecuteError {
        ExecuteError::NoInput { rank: self.rank(), task }
    }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "(no message)".to_owned())
}
