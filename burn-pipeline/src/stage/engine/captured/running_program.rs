//! A program that has started, and how far it has run.

use super::microbatch_run::MicrobatchRun;
use crate::program::{Phase, StagePrograms};
use crate::stage::error::StageError;
use burn::backend::DispatchTensor;
use std::sync::Arc;

/// One program of one microbatch, run up to some operation.
pub(super) struct RunningProgram {
    run: MicrobatchRun,
    pub(super) phase: Phase,
    programs: Arc<StagePrograms>,
    at: usize,
}

impl RunningProgram {
    /// A program of a microbatch that was fed what the program reads.
    pub(super) fn new(run: MicrobatchRun, phase: Phase) -> Self {
        let programs = run.stage.programs.clone();
        Self { run, phase, programs, at: 0 }
    }

    /// The number of pieces that have not run yet.
    pub(super) fn left(&self) -> usize {
        self.programs.program(self.phase).pieces() - self.at
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
