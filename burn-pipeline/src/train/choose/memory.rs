//! Measures the memory of a model's stages, from which the simulator predicts each rank's memory.
//!
//! Guarantees: for any engine (plain autodiff, captured, compiled, recomputed), actual allocations are measured. The
//! model is not kept or changed.
//!
//! The caller provides the meter ([`Builder::measure_memory`]), and the simulator adds up the stages. Measuring is
//! needed because Burn's autodiff does not report what it holds, and one way serves all engines.
//!
//! 1. Stages are made as [`Builder::build`] would, one at a time, and run on one microbatch. A first round, with a step
//!    of the optimizer, compiles and allocates what stays.
//! 2. What stays beside the parameters is `optimizer_bytes`. Two more rounds run `F` and the backward, split if the
//!    plan splits it. The first of them leaves the sum of gradients, `gradient_bytes`. In the second, the remaining and
//!    the peak bytes are read after each action, minus what stays and the gradient sum.
//! 3. A stage's input is copied before each round, so that a message counts for the rank that receives it, as between
//!    processes. (Among threads on Flex its memory is the sender's until it is freed.) Pieces of the batch do not
//!    count, because they are views of the caller's tensors.
//! 4. Each action runs on its own threads, which end with it, so that memory that threads keep for reuse (see the
//!    compiler's pool) does not count as the stage's. Then some microbatches run on the same threads, two at a time; a
//!    rank also keeps what the heap needs there beyond the actions, so this is added to `optimizer_bytes`.
//! 5. Of a tensor-parallel stage, the first member's piece is measured alone: collectives take their usual memory, and
//!    no time (`TensorGroup::without_others`). All members hold the same amount, so a rank of the profile is one member
//!    of a pipeline rank. A meter of the heap could not tell members apart in one process.
//!
//! Not included: what happens between steps (the optimizer's temporaries, sums over replicas), and what
//! [`Accumulation::Ordered`](crate::stage::Accumulation::Ordered) holds back.

use super::layer::seeds;
use super::walk::{MeasureError, Walk, caught};
use crate::payload::{AnyTensor, Payload};
use crate::stage::{
    BackwardCall, Batch, ErasedStage, ForwardCall, ForwardOutput, ForwardSeed, Gradients, Members, StageError,
};
use crate::train::error::BuildError;
use crate::train::features::Feature;
use crate::train::plans::split_stages;
use crate::train::setup::Builder;
use burn_pipeline_plan::cost::{LinkCosts, Profile, StageCost};
use burn_pipeline_plan::plan::StageId;
use std::sync::Arc;
use std::time::Instant;

/// The number of microbatches that run on the same threads, after the first one.
const ROUNDS: usize = 4;

/// Measures how much memory is allocated: a counting allocator on a processor, the driver on other devices.
pub trait MemoryMeter: Sync {
    /// The bytes allocated now.
    fn allocated(&self) -> usize;
    /// The peak of allocated bytes since the last call, or since the start.
    fn take_peak(&self) -> usize;
}

impl Builder {
    /// Measures the memory and time of every stage on one microbatch. With the profile,
    /// [`simulate`](crate::simulate::simulate) predicts the peak memory of each rank, for any plan with the same stages
    /// that splits the same backwards. Nothing else may allocate meanwhile.
    ///
    /// For tensor-parallel stages ([`Builder::tensor_parallel`]), numbers are per member, and seconds exclude
    /// collectives; measured steps include them ([`StepReport::profile`](crate::train::StepReport::profile)).
    ///
    /// # Errors
    /// Returns [`MeasureError`], which names the stage, or what the builder lacks.
    pub fn measure_memory(&self, microbatch: Batch, meter: &dyn MemoryMeter) -> Result<Profile, MeasureError> {
        let planned = |error: BuildError| MeasureError::Plan(error.to_string());
        self.goes_with(Feature::Measuring)?;
        let mut plans = self.plans().map_err(planned)?;
        let split = split_stages(plans.current().map_err(planned)?.plan());
        let placement = &plans.placement;
        let stages = placement.stages();
        let size = |stage| self.members.of(placement.rank_of(StageId::new(stage)));
        let mut walk = Walk::new(self, &microbatch, (0..stages).map(size).collect());
        let mut value = walk.first_input();
        let mut costs = Vec::with_capacity(stages);
        for index in 0..stages {
            let splits = split.iter().any(|stage| stage.index() == index);
            let cost = caught(index, stages, || self.stage_memory(&mut walk, index, &mut value, splits, meter))?;
            tracing::info!(index, ?cost, "stage measured");
            costs.push(cost);
        }
        let profile = Profile::new(costs, LinkCosts::default())?.with_skips(self.skips_between(stages))?;
        Ok(profile.train_from(walk.first_trained.unwrap_or(0))?)
    }

    /// Measures one stage and replaces `value`, its input, by its output.
    fn stage_memory(
        &self,
        walk: &mut Walk<'_>,
        index: usize,
        value: &mut Payload,
        splits: bool,
        meter: &dyn MemoryMeter,
    ) -> Result<StageCost, MeasureError> {
        let (before, context) = (meter.allocated(), walk.context(index));
        // A member that is measured alone has no others to compare collectives with.
        let members = (context.group.size() > 1).then(|| -> Members { Arc::new(|_| ()) });
        let mut held = in_pool(self.threads, || self.make_stage(&context, splits, self.settings.outputs, members))?
            .ok_or(MeasureError::NoStages)?;
        held.engine_mut().set_forward_seed(ForwardSeed(self.seed));
        let call = walk.call(held.as_ref(), index, std::mem::take(value))?;
        // The first stage that trains has no `I`: `W` is its whole backward.
        let alone = index > 0 && walk.first_trained == Some(index);
        let splits = splits && !alone;
        let failed: &dyn Fn(StageError) -> MeasureError = &walk.failed(index);
        let (threads, cost) = (self.threads, StageCost::default());
        let mut stage = MeteredStage { held, splits, threads, meter, failed, base: 0, cost };
        let output = stage.first_round(&call)?;
        let kept = meter.allocated().saturating_sub(before + output.bytes()) as f64;
        stage.base = meter.allocated();
        stage.round(&call)?;
        let gradient_bytes = stage.beyond();
        stage.base = meter.allocated();
        stage.round(&call)?;
        let kept = kept + stage.reserve(&call)?;
        let weight_bytes = stage.held.weight_bytes() as f64;
        let unsharded_bytes = stage.held.computed().iter().map(|(_, copy)| copy.bytes()).sum::<usize>() as f64;
        let optimizer_bytes = (kept - weight_bytes).max(0.0);
        let input = if alone { Some(0.0) } else { stage.cost.input };
        let cost = StageCost { input, gradient_bytes, weight_bytes, unsharded_bytes, optimizer_bytes, ..stage.cost };
        let (output, skip_bytes) = walk.pass_on(index, output)?;
        let cost = StageCost { message_bytes: output.bytes() as f64, skip_bytes: skip_bytes as f64, ..cost };
        *value = output;
        Ok(cost)
    }
}

/// A stage, and the readings while it ran.
struct MeteredStage<'a> {
    held: Box<dyn ErasedStage>,
    /// True if the plan splits its backward.
    splits: bool,
    threads: usize,
    meter: &'a dyn MemoryMeter,
    failed: &'a dyn Fn(StageError) -> MeasureError,
    /// Allocated bytes that are not the microbatch's.
    base: usize,
    cost: StageCost,
}

impl MeteredStage<'_> {
    /// The allocated bytes beyond the base.
    fn beyond(&self) -> f64 {
        self.meter.allocated().saturating_sub(self.base) as f64
    }

    /// Runs an action; returns its result, its seconds, and its peak bytes beyond the base.
    fn action<T: Send>(
        &mut self,
        run: impl FnOnce(&mut dyn ErasedStage) -> Result<T, StageError> + Send,
    ) -> Result<(T, f64, f64), MeasureError> {
        let (held, began) = (self.held.as_mut(), Instant::now());
        self.meter.take_peak();
        let given = in_pool(self.threads, || run(held))?.map_err(self.failed)?;
        let peak = self.meter.take_peak().saturating_sub(self.base) as f64;
        Ok((given, began.elapsed().as_secs_f64(), peak))
    }

    /// Runs a round that compiles, and a step of the optimizer. Returns the stage's output.
    fn first_round(&mut self, call: &ForwardCall) -> Result<Payload, MeasureError> {
        let output = match self.forward(call)? {
            ForwardOutput::Activations(output) => output.copied(),
            ForwardOutput::Loss(_) => Payload::default(),
        };
        self.held.clear();
        self.round(call)?;
        self.action(|held| {
            held.optimize(0.0.into());
            Ok(())
        })?;
        Ok(output)
    }

    /// Runs `F` and the backward of a microbatch.
    fn round(&mut self, call: &ForwardCall) -> Result<(), MeasureError> {
        self.held.gradients().begin(Some(0));
        let output = self.forward(call)?;
        let (seeds, given) = own_seeds(&output);
        drop(output);
        self.cost.activation_bytes = (self.beyond() - given as f64).max(0.0);
        let call = BackwardCall { microbatch: 0, seeds, whole: !self.splits };
        let ((), seconds, peak) = self.action(|held| held.backward(call).map(drop))?;
        if !self.splits {
            (self.cost.backward, self.cost.backward_peak_bytes) = (Some(seconds), Some(peak));
            return Ok(());
        }
        (self.cost.input, self.cost.input_peak_bytes) = (Some(seconds), Some(peak));
        self.cost.freed_at_input_bytes = self.cost.activation_bytes - self.beyond();
        let ((), seconds, peak) = self.action(|held| held.backward_weight(0))?;
        (self.cost.weight, self.cost.weight_peak_bytes) = (Some(seconds), Some(peak));
        Ok(())
    }

    /// The bytes that the heap needs beyond the actions if the same threads run one microbatch after the other.
    fn reserve(&mut self, call: &ForwardCall) -> Result<f64, MeasureError> {
        let cost = self.cost;
        let peaks = [cost.forward_peak_bytes, cost.input_peak_bytes, cost.weight_peak_bytes, cost.backward_peak_bytes];
        let needed = cost.activation_bytes + peaks.into_iter().flatten().fold(0.0, f64::max);
        let splits = self.splits;
        let (waiting, _, peak) = self.action(|held| {
            let (mut waiting, mut bytes) = (None, 0);
            for microbatch in 0..=ROUNDS {
                held.gradients().begin(Some(microbatch));
                let (next, given) = own_seeds(&held.forward(received(call, microbatch))?);
                bytes = given;
                if let Some(seeds) = waiting.replace(next) {
                    run_backward(held, splits, microbatch - 1, seeds)?;
                }
            }
            waiting.map_or(Ok(()), |seeds| run_backward(held, splits, ROUNDS, seeds))?;
            Ok(bytes)
        })?;
        Ok((peak - needed - waiting as f64).max(0.0))
    }

    fn forward(&mut self, call: &ForwardCall) -> Result<ForwardOutput, MeasureError> {
        let call = received(call, 0);
        let (output, seconds, peak) = self.action(|held| held.forward(call))?;
        (self.cost.forward, self.cost.forward_peak_bytes) = (seconds, Some(peak));
        Ok(output)
    }
}

/// The call for another microbatch, with its own copy of the input; the first stage's input is a piece of the batch.
fn received(call: &ForwardCall, microbatch: usize) -> ForwardCall {
    let input = call.input.clone();
    let input = if call.wants_input_gradient { input.copied() } else { input };
    ForwardCall { microbatch, input, ..call.clone() }
}

/// Runs the whole backward of a microbatch.
fn run_backward(
    held: &mut dyn ErasedStage,
    splits: bool,
    microbatch: usize,
    seeds: Gradients,
) -> Result<(), StageError> {
    held.backward(BackwardCall { microbatch, seeds, whole: !splits })?;
    if splits { held.backward_weight(microbatch) } else { Ok(()) }
}

/// Gradients for an output, in their own memory, and their bytes.
fn own_seeds(output: &ForwardOutput) -> (Gradients, usize) {
    let seeds: Gradients = seeds(output).into_iter().map(|seed| seed.map(AnyTensor::copied)).collect();
    let bytes = seeds.iter().flatten().map(AnyTensor::bytes).sum();
    (seeds, bytes)
}

/// Runs `run` on new compute threads, which have ended when this returns.
fn in_pool<T: Send>(threads: usize, run: impl FnOnce() -> T + Send) -> Result<T, MeasureError> {
    let mut started = Vec::new();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).spawn_handler(|thread| {
        started.push(std::thread::Builder::new().spawn(|| thread.run())?);
        Ok(())
    });
    let pool = pool.build().map_err(|error| MeasureError::Threads(error.to_string()))?;
    let given = pool.install(run);
    drop(pool);
    // Joining frees the threads' own memory. None of them can have panicked, because `install` propagates panics.
    started.into_iter().for_each(|thread| drop(thread.join()));
    Ok(given)
}
