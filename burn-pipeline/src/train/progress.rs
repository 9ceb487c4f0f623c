//! The progress of a training job.

use crate::stage::mixed;
use serde::{Deserialize, Serialize};

/// The progress of a training job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Progress {
    /// The number of optimizer steps.
    pub steps: u64,
    /// Batches run forward and backward; more than steps if several batches count as one step.
    pub batches: u64,
    /// Samples in these batches: the position of a loader that goes through the data in order.
    pub samples: u64,
    /// The seed of forwards; see [`Builder::seed`](crate::train::Builder::seed).
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
    /// Steps skipped since the pipeline was built.
    skipped: u64,
}

impl Training {
    pub(crate) fn new(seed: Option<u64>) -> Self {
        Self { progress: Progress { seed, ..Progress::default() }, ..Self::default() }
    }

    pub(crate) fn progress(&self) -> Progress {
        self.progress
    }

    /// Returns true if there are unapplied gradients.
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

    /// Records a skipped step.
    pub(crate) fn skipped(&mut self) {
        self.pending = 0;
        self.skipped += 1;
    }

    /// The number of skipped steps.
    pub(crate) fn skipped_steps(&self) -> u64 {
        self.skipped
    }

    /// Records that the accumulated gradients are gone.
    pub(crate) fn gradients_gone(&mut self) {
        self.pending = 0;
    }

    /// Undoes the batches since the last step, after a failure that dropped their gradients.
    pub(crate) fn undo(&mut self) {
        if self.is_mid_step() {
            self.progress = self.before;
            self.pending = 0;
        }
    }

    /// Resumes from a checkpoint. If that has no seed, the job keeps its own.
    pub(crate) fn resume(&mut self, saved: Progress) {
        self.progress = Progress { seed: saved.seed.or(self.progress.seed), ..saved };
    }
}
