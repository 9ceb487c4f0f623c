//! A program that has started, and how far it has run.

use super::microbatch_run::MicrobatchRun;
use super::replayable::Replayable;
use crate::program::{Phase, Program, StagePrograms};
use crate::stage::engine::call::{ForwardCall, Gradients};
use crate::stage::engine::recording::Parameters;
use crate::stage::error::StageError;
use burn::backend::DispatchTensor;
use rand::rngs::StdRng;
use std::sync::Arc;

/// One program of one microbatch, run up to some operation.
pub(super) struct RunningProgram {
    pub(super) run: MicrobatchRun,
    pub(super) microbatch: usize,
    pub(super) phase: Phase,
    programs: Arc<StagePrograms>,
    at: usize,
}

impl RunningProgram {
    /// Starts a forward and feeds its inputs.
    pub(super) fn forward(
        stage: Arc<Replayable>,
        call: ForwardCall,
        parameters: Parameters,
        generator: Option<StdRng>,
    ) -> Result<Self, StageError> {
        let (microbatch, programs) = (call.microbatch, stage.programs.clone());
        let run = MicrobatchRun::start(stage, call, parameters, generator)?;
        Ok(Self { run, microbatch, phase: Phase::Forward, programs, at: 0 })
    }

    /// Starts `B` or `I` of a microbatch after its forward, and feeds its gradients.
    pub(super) fn backward(
        run: MicrobatchRun,
        microbatch: usize,
        seeds: Gradients,
        phase: Phase,
    ) -> Result<Self, StageError> {
        let programs = run.stage.programs.clone();
        let mut running = Self { run, microbatch, phase, programs, at: 0 };
        let programs = running.programs.clone();
        running.run.seed(seeds, programs.program(phase))?;
        Ok(running)
    }

    fn program(&self) -> &Program {
        self.programs.program(self.phase)
    }

    /// The number of pieces that have not run yet.
    pub(super) fn left(&self) -> usize {
        self.program().pieces() - self.at
    }

    /// Runs the next pieces.
    pub(super) fn advance(&mut self, pieces: usize) -> Result<(), StageError> {
        let end = self.at + pieces.min(self.left());
        self.run.run_part(self.programs.program(self.phase), self.at..end)?;
        self.at = end;
        Ok(())
    }

    /// Runs the rest, and takes the results out.
    pub(super) fn finish(mut self) -> Result<(MicrobatchRun, Vec<DispatchTensor>), StageError> {
        self.advance(usize::MAX)?;
        let given = self.run.results(self.programs.program(self.phase));
        Ok((self.run, given))
    }
}
