//! Steps by the caller, for an optimizer outside of the pipeline.
//!
//! 1. [`Pipeline::accumulate`] accumulates gradients of one or more batches.
//! 2. [`Pipeline::take_gradients`] returns them as an optimizer of the pipeline would get them.
//! 3. The caller steps its own copy of the weights, and [`Pipeline::step_to`] takes over the new values.

use crate::execute::ExecuteError;
use crate::payload::AnyTensor;
use crate::train::control::Command;
use crate::train::error::PipelineError;
use crate::train::features::Feature;
use crate::train::pipeline::Pipeline;
use crate::train::step::Rank;
use burn::module::ParamId;
use std::collections::HashMap;
use std::time::Instant;

impl Pipeline {
    /// Takes over weights that the caller stepped, as if this pipeline's optimizer had. It counts as a step, and drops
    /// the accumulated gradients.
    ///
    /// Values are matched to parameters by the ids in the stages' modules
    /// ([`NamedWeight::id`](crate::stage::NamedWeight)); a parameter without a value keeps its own. Values are whole,
    /// as are the gradients of [`Pipeline::take_gradients`], also for tensor-parallel stages. `observed` are the
    /// observed numbers in the reports of the step's batches, for
    /// [`Stage::after_step`](crate::stage::Stage::after_step). When ranks are processes, all make the call with the
    /// same values.
    ///
    /// # Errors
    /// Same as [`Pipeline::step`]. If a value has another shape or element type than its parameter, other stages may
    /// already have the new values ([`PipelineError::HalfStepped`]).
    pub fn step_to(
        &mut self,
        weights: HashMap<ParamId, AnyTensor>,
        observed: Vec<Vec<f64>>,
    ) -> Result<(), PipelineError> {
        self.goes_with(Feature::StepTo)?;
        let weights = weights.into_iter().map(|(id, weight)| (id, weight.unshared())).collect();
        self.ask(StepTo { step: self.training.progress().steps + 1, weights, observed })?;
        self.training.stepped();
        Ok(())
    }
}

struct StepTo {
    step: u64,
    weights: HashMap<ParamId, AnyTensor>,
    observed: Vec<Vec<f64>>,
}

impl Command for StepTo {
    type Reply = ();
    const NAME: &'static str = "taking over stepped weights";
    const GATHERS: bool = true;
    const RUNS_ON_WEIGHTS: bool = true;

    fn step(&self) -> Option<u64> {
        Some(self.step)
    }

    fn run(&self, rank: &mut Rank, _: Instant) -> Result<(), ExecuteError> {
        rank.step_to(&self.weights, &self.observed)
    }
}
