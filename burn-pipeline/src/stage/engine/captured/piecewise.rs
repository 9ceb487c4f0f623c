//! A program on its way: how far it has run.

use super::microbatch_run::{Flight, Ready};
use super::parameters::Parameters;
use crate::program::{Phase, Program, StagePrograms};
use crate::stage::engine::call::{ForwardCall, Gradients};
use crate::stage::error::StageError;
use burn::backend::DispatchTensor;
use std::sync::Arc;

/// One program of one microbatch, run up to some operation.
pub(super) struct Piecewise {
    pub(super) flight: Flight,
    pub(super) microbatch: usize,
    pub(super) phase: Phase,
    programs: Arc<StagePrograms>,
    at: usize,
}

impl Piecewise {
    /// A forward, fed.
    pub(super) fn forward(ready: Arc<Ready>, call: ForwardCall, parameters: Parameters) -> Result<Self, StageError> {
        let (microbatch, programs) = (call.microbatch, ready.programs.clone());
        let flight = Flight::board(ready, call, parameters)?;
        Ok(Self { flight, microbatch, phase: Phase::Forward, programs, at: 0 })
    }

    /// A backward of a forwarded microbatch, fed: `B` or `I`.
    pub(super) fn backward(
        flight: Flight,
        microbatch: usize,
        seeds: Gradients,
        phase: Phase,
    ) -> Result<Self, StageError> {
        let programs = flight.ready.programs.clone();
        let mut piecewise = Self { flight, microbatch, phase, programs, at: 0 };
        let programs = piecewise.programs.clone();
        piecewise.flight.seed(seeds, programs.program(phase))?;
        Ok(piecewise)
    }

    fn program(&self) -> &Program {
        self.programs.program(self.phase)
    }

    /// Operations that have not run yet.
    pub(super) fn left(&self) -> usize {
        self.program().ir().len() - self.at
    }

    /// Runs the next operations.
    pub(super) fn advance(&mut self, pieces: usize) {
        let end = self.at + pieces.min(self.left());
        self.flight.run_part(self.programs.program(self.phase), self.at..end);
        self.at = end;
    }

    /// Runs what is left, and hands the results out.
    pub(super) fn finish(mut self) -> (Flight, Vec<DispatchTensor>) {
        self.advance(usize::MAX);
        let given = self.flight.land(self.programs.program(self.phase));
        (self.flight, given)
    }
}
