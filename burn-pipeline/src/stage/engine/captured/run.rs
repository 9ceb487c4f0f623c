//! The engine that replays captured programs.

use super::engine::Captured;
use super::microbatch_run::{MicrobatchRun, RunningProgram};
use super::replayable::Replayable;
use crate::program::{Phase, Program, StagePrograms};
use crate::stage::engine::call::{BackwardCall, ForwardCall, ForwardOutput, Gradients};
use crate::stage::engine::contract::{Direction, Engine, EngineState, Started};
use crate::stage::engine::function::StageCode;
use crate::stage::engine::recording::Parameters;
use crate::stage::engine::report::{ActivationBytes, EngineReport};
use crate::stage::error::StageError;
use crate::stage::module::Stage;
use crate::stage::random::ForwardSeed;
use crate::stage::state::{Accumulation, GradientStore};
use std::collections::BTreeSet;
use std::sync::Arc;

const DRAWS: &str = "its forward draws random numbers, so its activations cannot be recomputed; give the pipeline a \
    seed (`Builder::seed`), so that the same numbers can be drawn again";

/// Says how many kinds of operations of groups and backend extensions are replayed whole.
fn extensions(programs: &[Arc<StagePrograms>]) -> String {
    let names: BTreeSet<&str> = programs.iter().flat_map(|programs| programs.custom_operations()).collect();
    let exchanges = programs.iter().any(|programs| programs.custom.exchanges());
    match names.len() {
        0 => String::new(),
        count if exchanges => format!(", {count} kinds of operations of its groups and of backend extensions included"),
        count => format!(", {count} kinds of kernels of backend extensions included"),
    }
}

impl Captured {
    /// Starts a forward of known programs and feeds its inputs.
    fn replay(
        &self,
        stage: Arc<Replayable>,
        call: ForwardCall,
        parameters: Parameters,
    ) -> Result<RunningProgram, StageError> {
        let generator = if stage.draws() { self.seed.generator(call.microbatch) } else { None };
        let run = MicrobatchRun::start(stage, call, parameters, generator)?;
        Ok(RunningProgram::new(run, Phase::Forward))
    }

    /// The program that each held microbatch ran last.
    fn held_after(&self) -> impl Iterator<Item = &Program> {
        let forwarded = self.forwarded.values().map(|run| run.stage.programs.program(Phase::Forward));
        forwarded.chain(self.halfway.values().map(|run| run.stage.programs.program(Phase::Input)))
    }
}

impl<M: Stage> Engine<M> for Captured {
    fn forward(&mut self, code: &StageCode<'_, M>, call: ForwardCall) -> Result<ForwardOutput, StageError> {
        match self.start_forward(code, call)? {
            Started::Pieces(_) => self.complete_forward(),
            Started::Finished(given) => Ok(given),
        }
    }

    fn forward_only(&mut self, code: &StageCode<'_, M>, call: ForwardCall) -> Result<ForwardOutput, StageError> {
        let parameters = Parameters::of(code.module);
        match self.programs_for(code, &call, &parameters)? {
            None => self.eager.forward_only(code, call),
            Some(stage) => {
                let (run, outputs) = self.replay(stage, call, parameters)?.finish()?;
                if run.stage.draws() && self.seed.0.is_none() {
                    return Err(StageError::Unsupported(DRAWS.to_owned()));
                }
                self.again.insert(run.microbatch, run.stage.clone());
                run.stage.output.forward_output(outputs)
            }
        }
    }

    fn forward_again(&mut self, code: &StageCode<'_, M>, call: ForwardCall) -> Result<ForwardOutput, StageError> {
        match self.again.remove(&call.microbatch) {
            None => self.eager.forward_again(code, call),
            Some(stage) => {
                self.forward = Some(self.replay(stage, call, Parameters::of(code.module))?);
                self.complete_forward()
            }
        }
    }

    fn repeats(&self, microbatch: usize) -> bool {
        self.again.contains_key(&microbatch)
    }

    fn backward(
        &mut self,
        code: &StageCode<'_, M>,
        call: BackwardCall,
        store: &mut GradientStore,
    ) -> Result<Gradients, StageError> {
        match self.start_backward(code, call, store)? {
            Started::Pieces(_) => self.complete_backward(store),
            Started::Finished(given) => Ok(given),
        }
    }

    fn backward_weight(&mut self, module: &M, microbatch: usize, store: &mut GradientStore) -> Result<(), StageError> {
        let Some(mut run) = self.halfway.remove(&microbatch) else {
            return self.eager.backward_weight(module, microbatch, store);
        };
        run.load(Phase::Input, || Parameters::of(module))?;
        let programs = run.stage.programs.clone();
        run.borrow_sums(Phase::Weight, store);
        let given = run.run(programs.weight())?;
        run.store_weights(given.into_iter(), store);
        Ok(())
    }

    fn backward_weights(
        &mut self,
        module: &M,
        microbatches: &[usize],
        store: &mut GradientStore,
    ) -> Result<(), StageError> {
        match self.mergeable(microbatches) && store.accumulation == Accumulation::AsTheyCome {
            true => self.merge_weights(module, microbatches, store),
            false => microbatches.iter().try_for_each(|&microbatch| self.backward_weight(module, microbatch, store)),
        }
    }

    fn start_forward(
        &mut self,
        code: &StageCode<'_, M>,
        call: ForwardCall,
    ) -> Result<Started<ForwardOutput>, StageError> {
        let parameters = Parameters::of(code.module);
        let Some(stage) = self.programs_for(code, &call, &parameters)? else {
            return self.eager.start_forward(code, call);
        };
        let begun = self.forward.insert(self.replay(stage, call, parameters)?);
        Ok(Started::Pieces(begun.left()))
    }

    fn start_backward(
        &mut self,
        code: &StageCode<'_, M>,
        call: BackwardCall,
        store: &mut GradientStore,
    ) -> Result<Started<Gradients>, StageError> {
        let Some(mut run) = self.forwarded.remove(&call.microbatch) else {
            return self.eager.start_backward(code, call, store);
        };
        run.load(Phase::Forward, || Parameters::of(code.module))?;
        let absent = run.stage.absent(&call.seeds);
        self.unused.clone_from(&absent);
        let mut run = self.without(run, absent);
        let phase = if call.whole { Phase::Backward } else { Phase::Input };
        run.seed(call.seeds, phase)?;
        if call.whole {
            run.borrow_sums(phase, store);
        }
        let begun = self.backward.insert(RunningProgram::new(run, phase));
        Ok(Started::Pieces(begun.left()))
    }
}

impl EngineState for Captured {
    fn report(&self) -> EngineReport {
        let programs: Vec<Arc<StagePrograms>> = self.programs.iter().map(|stage| stage.programs.clone()).collect();
        let reason = match (programs.len(), &self.refused) {
            (0, None) => "no microbatch was run yet".to_owned(),
            (_, None) => {
                let compiled = match programs.last().map(|stage| (stage.is_compiled(), stage.matmuls())) {
                    Some((true, Some(matmuls))) => format!("; it is compiled, with {matmuls} matmuls"),
                    Some((true, None)) => "; it is compiled".to_owned(),
                    _ => String::new(),
                };
                format!("it could be captured, and its backward can be split{}{compiled}", extensions(&programs))
            }
            (0, Some(refused)) => format!("it cannot be captured: {refused}"),
            (_, Some(refused)) => format!("it was captured until a forward was refused: {refused}"),
        };
        let captured = self.refused.is_none();
        EngineReport { captured, reason, deferred: self.eager.report().deferred, programs }
    }

    fn set_forward_seed(&mut self, seed: ForwardSeed) {
        self.eager.set_forward_seed(seed);
        self.seed = seed;
    }

    fn advance(&mut self, direction: Direction) -> Result<(), StageError> {
        let begun = match direction {
            Direction::Forward => &mut self.forward,
            Direction::Backward => &mut self.backward,
        };
        begun.as_mut().ok_or(StageError::NotHeld)?.advance(1)
    }

    fn complete_forward(&mut self) -> Result<ForwardOutput, StageError> {
        let (run, outputs) = self.forward.take().ok_or(StageError::NotHeld)?.finish()?;
        let stage = run.stage.clone();
        self.forwarded.insert(run.microbatch, run);
        stage.output.forward_output(outputs)
    }

    fn complete_backward(&mut self, store: &mut GradientStore) -> Result<Gradients, StageError> {
        let begun = self.backward.take().ok_or(StageError::NotHeld)?;
        let (phase, (mut run, given)) = (begun.phase, begun.finish()?);
        let mut given = given.into_iter();
        let inputs = run.input_gradients(&mut given);
        match phase {
            Phase::Input => drop(self.halfway.insert(run.microbatch, run)),
            _ => run.store_weights(given, store),
        }
        Ok(inputs)
    }

    fn held(&self) -> usize {
        self.forwarded.len() + self.halfway.len() + self.eager.held()
    }

    fn pins_weights(&self) -> bool {
        let begun = self.forward.is_some() || self.backward.is_some();
        begun || self.eager.held() > 0 || self.held_after().any(|program| program.holds_views)
    }

    fn unload_weights(&mut self) {
        self.forwarded.values_mut().for_each(|run| run.unload(Phase::Forward));
        self.halfway.values_mut().for_each(|run| run.unload(Phase::Input));
    }

    fn held_bytes(&self) -> Option<usize> {
        (self.eager.held() == 0).then(|| self.held_after().map(Program::held_bytes).sum())
    }

    fn activation(&self) -> Option<ActivationBytes> {
        let of = |programs: &StagePrograms| ActivationBytes {
            after_forward: programs.forward().held_bytes(),
            after_input: programs.input().held_bytes(),
            recomputed: 0,
            peaks: programs.peaks(),
        };
        self.programs.iter().map(|stage| of(&stage.programs)).max()
    }

    fn clear(&mut self) {
        self.forwarded.clear();
        self.halfway.clear();
        self.again.clear();
        (self.forward, self.backward) = (None, None);
        self.eager.clear();
    }
}
