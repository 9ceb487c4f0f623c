//! How far a training job has come.

use crate::stage::mixed;
use serde::{Deserialize, Serialize};

/// How far a training job has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Progress {
    /// Steps of the weights.
    pub steps: u64,
    /// Batches run forward and backward; more than steps where several count as one.
    pub batches: u64,
    /// Samples in these batches: where a loader that goes through the data in order stands.
    pub samples: u64,
    /// The seed that forwards draw from, see [`Builder::seed`](crate::train::Builder::seed).
    pub seed: Option<u64>,
}

/// Progress, and what was run since the last step.
#[derive(Debug, Default)]
pub(crate) struct Training {
    progress: Progress,
    /// Batches whose gradients no step has used yet.
    pending: usize,
    /// Progress before the first of them.
    before: Progress,
    /// Steps that left the weights alone, since the pipeline was built.
    skipped: u64,
}

impl Training {
    pub(crate) fn new(seed: Option<u64>) -> Self {
        Self { progress: Progress { seed, ..Progress::default() }, ..Self::default() }
    }

    pub(crate) fn progress(&self) -> Progress {
        self.progress
    }

    /// Are there gradients that no step has used?
    pub(crate) fn is_mid_step(&self) -> bool {
        self.pending > 0
    }

    /// The seed of the next batch.
    pub(crate) fn batch_seed(&self) -> Option<u64> {
        self.progress.seed.map(|seed| mixed(seed, self.progress.batches))
    }

    pub(crate) fn batch_done(&mut self, samples: usize) {
        if self.pending == 0 {
            self.before = self.progress;
        }
        self.pending += 1;
        self.progress.batches += 1;
        self.progress.samples += samples as u64;
    }

    pub(crate) fn stepped(&mut self) {
        self.pending = 0;
        self.progress.steps += 1;
    }

    /// A step left the weights alone.
    pub(crate) fn skipped(&mut self) {
        self.pending = 0;
        self.skipped += 1;
    }

    /// Steps that left the weights alone.
    pub(crate) fn skipped_steps(&self) -> u64 {
        self.skipped
    }

    /// The gradients gathered since the last step are gone.
    pub(crate) fn gradients_gone(&mut self) {
        self.pending = 0;
    }

    /// A failure has dropped the gradients gathered since the last step: their batches were not run.
    pub(crate) fn undo(&mut self) {
        if self.is_mid_step() {
            self.progress = self.before;
            self.pending = 0;
        }
    }

    /// Goes on from a checkpoint; without a seed there, the job keeps its own.
    pub(crate) fn resume(&mut self, saved: Progress) {
        self.progress = Progress { seed: saved.seed.or(self.progress.seed), ..saved };
    }
}
