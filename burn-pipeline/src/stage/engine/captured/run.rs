//! The engine that replays captured programs.

use super::engine::Captured;
use super::microbatch_run::MicrobatchRun;
use super::replayable::Replayable;
use super::running_program::RunningProgram;
use crate::program::{Phase, StagePrograms};
use crate::stage::Stage;
use crate::stage::engine::call::{ForwardCall, ForwardOutput, Gradients};
use crate::stage::engine::contract::{Engine, EngineState};
use crate::stage::engine::function::StageCode;
use crate::stage::engine::recording::Parameters;
use crate::stage::engine::report::{ActivationBytes, EngineReport};
use crate::stage::engine::work::{Direction, StageWork, WorkResult, WorkStarted};
use crate::stage::error::StageError;
use crate::stage::random::ForwardSeed;
use crate::stage::state::{Accumulation, GradientStore};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

const DRAWS: &str = "its forward draws random numbers, so its activations cannot be recomputed; give the pipeline a \
    seed (`Builder::seed`), so that the same numbers can be drawn again";

/// Says how many kinds of operations of groups and backend extensions are replayed whole.
fn extensions(programs: &[Arc<StagePrograms>]) -> String {
    let names: BTreeSet<&str> = programs.iter().flat_map(|programs| programs.custom_operations()).collect();
    let exchanges = programs.iter().any(|programs| programs.exchanges());
    match names.len() {
        0 => String::new(),
        count if exchanges => format!(", {count} kinds of operations of its groups and of backend extensions included"),
        count => format!(", {count} kinds of kernels of backend extensions included"),
    }
}

/// The steps that the methods of [`Engine`] share.
impl Captured {
    /// Starts a forward of known programs and feeds its inputs.
    fn replay(
        &self,
        stage: Arc<Replayable>,
        call: ForwardCall,
        parameters: Parameters,
    ) -> Result<RunningProgram, StageError> {
        let generator = if stage.draws() { self.seed.generator(call.microbatch) } else { None };
        RunningProgram::forward(stage, call, parameters, generator)
    }

    fn finish_forward(&mut self, begun: RunningProgram) -> Result<ForwardOutput, StageError> {
        let (microbatch, (run, outputs)) = (begun.microbatch, begun.finish()?);
        let stage = run.stage.clone();
        self.forwarded.insert(microbatch, run);
        stage.output.forward_output(outputs)
    }

    /// Starts the backward of a captured forward, and feeds its gradients.
    fn start_backward<M: Stage>(
        &mut self,
        module: &M,
        microbatch: usize,
        seeds: Gradients,
        phase: Phase,
    ) -> Result<RunningProgram, StageError> {
        let mut run = self.forwarded.remove(&microbatch).ok_or(StageError::NotHeld)?;
        run.load(Phase::Forward, || Parameters::of(module))?;
        let absent = run.stage.absent(&seeds);
        self.unused.clone_from(&absent);
        let run = self.without(run, absent);
        RunningProgram::backward(run, microbatch, seeds, phase)
    }

    fn finish_backward(&mut self, begun: RunningProgram, store: &mut GradientStore) -> Result<Gradients, StageError> {
        let (microbatch, (mut run, given)) = (begun.microbatch, begun.finish()?);
        let mut given = given.into_iter();
        let inputs = run.input_gradients(&mut given);
        run.store_weights(microbatch, given, store);
        Ok(inputs)
    }

    fn finish_input(&mut self, begun: RunningProgram) -> Result<Gradients, StageError> {
        let (microbatch, (run, given)) = (begun.microbatch, begun.finish()?);
        let inputs = run.input_gradients(&mut given.into_iter());
        self.halfway.insert(microbatch, run);
        Ok(inputs)
    }

    fn begun(&mut self, direction: Direction) -> &mut Option<RunningProgram> {
        match direction {
            Direction::Forward => &mut self.forward,
            Direction::Backward => &mut self.backward,
        }
    }
}

impl<M: Stage> Engine<M> for Captured {
    fn forward(&mut self, code: &StageCode<'_, M>, call: ForwardCall) -> Result<ForwardOutput, StageError> {
        let parameters = Parameters::of(code.module);
        match self.programs_for(code, &call, &parameters)? {
            None => self.eager.forward(code, call),
            Some(stage) => {
                let begun = self.replay(stage, call, parameters)?;
                self.finish_forward(begun)
            }
        }
    }

    fn forward_only(&mut self, code: &StageCode<'_, M>, call: ForwardCall) -> Result<ForwardOutput, StageError> {
        let parameters = Parameters::of(code.module);
        match self.programs_for(code, &call, &parameters)? {
            None => self.eager.forward_only(code, call),
            Some(stage) => {
                let begun = self.replay(stage, call, parameters)?;
                let (microbatch, (run, outputs)) = (begun.microbatch, begun.finish()?);
                if run.stage.draws() && !self.seed.is_set() {
                    return Err(StageError::Unsupported(DRAWS.to_owned()));
                }
                self.again.insert(microbatch, run.stage.clone());
                run.stage.output.forward_output(outputs)
            }
        }
    }

    fn forward_again(&mut self, code: &StageCode<'_, M>, call: ForwardCall) -> Result<ForwardOutput, StageError> {
        match self.again.remove(&call.microbatch) {
            None => self.eager.forward_again(code, call),
            Some(stage) => {
                let begun = self.replay(stage, call, Parameters::of(code.module))?;
                self.finish_forward(begun)
            }
        }
    }

    fn repeats(&self, microbatch: usize) -> bool {
        self.again.contains_key(&microbatch)
    }

    fn backward(
        &mut self,
        module: &M,
        microbatch: usize,
        seeds: Gradients,
        store: &mut GradientStore,
    ) -> Result<Gradients, StageError> {
        if !self.forwarded.contains_key(&microbatch) {
            return self.eager.backward(module, microbatch, seeds, store);
        }
        let mut begun = self.start_backward(module, microbatch, seeds, Phase::Backward)?;
        begun.run.borrow_sums(microbatch, Phase::Backward, store);
        self.finish_backward(begun, store)
    }

    fn backward_input(&mut self, module: &M, microbatch: usize, seeds: Gradients) -> Result<Gradients, StageError> {
        if !self.forwarded.contains_key(&microbatch) {
            return self.eager.backward_input(module, microbatch, seeds);
        }
        let begun = self.start_backward(module, microbatch, seeds, Phase::Input)?;
        self.finish_input(begun)
    }

    fn backward_weight(&mut self, module: &M, microbatch: usize, store: &mut GradientStore) -> Result<(), StageError> {
        let Some(mut run) = self.halfway.remove(&microbatch) else {
            return self.eager.backward_weight(module, microbatch, store);
        };
        run.load(Phase::Input, || Parameters::of(module))?;
        let programs = run.stage.programs.clone();
        run.borrow_sums(microbatch, Phase::Weight, store);
        let given = run.run(programs.weight())?;
        run.store_weights(microbatch, given.into_iter(), store);
        Ok(())
    }

    fn backward_weights(
        &mut self,
        module: &M,
        microbatches: &[usize],
        store: &mut GradientStore,
    ) -> Result<(), StageError> {
        match self.mergeable(microbatches) && store.accumulation() == Accumulation::AsTheyCome {
            true => self.merge_weights(module, microbatches, store),
            false => microbatches.iter().try_for_each(|&microbatch| self.backward_weight(module, microbatch, store)),
        }
    }

    fn start(
        &mut self,
        code: &StageCode<'_, M>,
        work: StageWork,
        store: &mut GradientStore,
    ) -> Result<WorkStarted, StageError> {
        let begun = match work {
            StageWork::Forward(call) => {
                let parameters = Parameters::of(code.module);
                match self.programs_for(code, &call, &parameters)? {
                    Some(stage) => self.replay(stage, call, parameters)?,
                    None => return self.eager.start(code, StageWork::Forward(call), store),
                }
            }
            StageWork::Backward(microbatch, seeds) if self.forwarded.contains_key(&microbatch) => {
                let mut begun = self.start_backward(code.module, microbatch, seeds, Phase::Backward)?;
                begun.run.borrow_sums(microbatch, Phase::Backward, store);
                begun
            }
            StageWork::BackwardInput(microbatch, seeds) if self.forwarded.contains_key(&microbatch) => {
                self.start_backward(code.module, microbatch, seeds, Phase::Input)?
            }
            // Work that could not be captured runs whole.
            work => return self.eager.start(code, work, store),
        };
        let direction = if begun.phase == Phase::Forward { Direction::Forward } else { Direction::Backward };
        let pieces = begun.left();
        *self.begun(direction) = Some(begun);
        Ok(WorkStarted::Pieces(pieces))
    }
}

impl EngineState for Captured {
    fn report(&self) -> EngineReport {
        let programs: Vec<Arc<StagePrograms>> = self.programs.iter().map(|stage| stage.programs.clone()).collect();
        let reason = match (programs.len(), &self.refused) {
            (0, None) => "no microbatch was run yet".to_owned(),
            (_, None) => {
                let compiled = match programs.last() {
                    Some(stage) if stage.is_rounded() => "; it is compiled, with bf16 matmuls",
                    Some(stage) if stage.is_compiled() => "; it is compiled",
                    _ => "",
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

    fn advance(&mut self, direction: Direction, pieces: usize) -> Result<(), StageError> {
        self.begun(direction).as_mut().ok_or(StageError::NotHeld)?.advance(pieces)
    }

    fn complete(&mut self, direction: Direction, store: &mut GradientStore) -> Result<WorkResult, StageError> {
        let begun = self.begun(direction).take().ok_or(StageError::NotHeld)?;
        Ok(match begun.phase {
            Phase::Forward => WorkResult::Forward(self.finish_forward(begun)?),
            Phase::Input => WorkResult::Backward(self.finish_input(begun)?),
            Phase::Backward | Phase::Weight => WorkResult::Backward(self.finish_backward(begun, store)?),
        })
    }

    fn held(&self) -> usize {
        self.forwarded.len() + self.halfway.len() + self.eager.held()
    }

    fn pins_weights(&self) -> bool {
        let begun = self.forward.is_some() || self.backward.is_some();
        let views = |runs: &HashMap<usize, MicrobatchRun>, phase| {
            runs.values().any(|run| run.stage.programs.program(phase).holds_views())
        };
        begun || self.eager.held() > 0 || views(&self.forwarded, Phase::Forward) || views(&self.halfway, Phase::Input)
    }

    fn unload_weights(&mut self) {
        self.forwarded.values_mut().for_each(|run| run.unload(Phase::Forward));
        self.halfway.values_mut().for_each(|run| run.unload(Phase::Input));
    }

    fn held_bytes(&self) -> Option<usize> {
        if self.eager.held() > 0 {
            return None;
        }
        let after = |runs: &HashMap<usize, MicrobatchRun>, phase| {
            runs.values().map(|run| run.stage.programs.program(phase).held_bytes()).sum::<usize>()
        };
        Some(after(&self.forwarded, Phase::Forward) + after(&self.halfway, Phase::Input))
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
