//! Steps of the weights by the caller: an optimizer that lives outside of the pipeline.
//!
//! 1. [`Pipeline::accumulate`] gathers gradients, of one batch or several.
//! 2. [`Pipeline::take_gradients`] gives them as an optimizer of the pipeline would get them.
//! 3. The caller steps its own copy of the weights, and [`Pipeline::step_to`] takes the new values over.

use crate::execute::ExecuteError;
use crate::stage::AnyTensor;
use crate::train::control::Command;
use crate::train::error::PipelineError;
use crate::train::pipeline::Pipeline;
use crate::train::step::Rank;
use burn::module::ParamId;
use std::collections::HashMap;
use std::time::Instant;

impl Pipeline {
    /// Takes over weights that the caller stepped, as if this pipeline's optimizer had: it counts as a step, and gathered
    /// gradients are forgotten.
    ///
    /// Values find their parameters by the ids in the stages' modules ([`NamedWeight::id`](crate::stage::NamedWeight)); a
    /// parameter without one keeps its own. Values are whole, as [`Pipeline::take_gradients`] gives gradients, also where several ranks hold a stage
    /// together. `observed` is what the reports of the step's batches had observed, which
    /// [`Stage::after_step`](crate::stage::Stage::after_step) gets. Where ranks are processes, all call it with the same values.
    ///
    /// # Errors
    /// As [`Pipeline::step`]; a value of another shape or element type than its parameter leaves other stages with the new values ([`PipelineError::HalfStepped`]).
    pub fn step_to(
        &mut self,
        weights: HashMap<ParamId, AnyTensor>,
        observed: Vec<Vec<f64>>,
    ) -> Result<(), PipelineError> {
        self.without_spread("`step_to`")?;
        self.without_vocabulary("`step_to`")?;
        let weights = weights.into_iter().map(|(id, weight)| (id, weight.unshared())).collect();
        self.ask(StepTo { step: self.training.progress().steps + 1, weights, observed })?;
        self.training.stepped();
        Ok(())
    }
}

/// Takes over weights that the caller stepped.
struct StepTo {
    /// Which step it is, counted from 1.
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
