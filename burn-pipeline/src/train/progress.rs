//! The progress of a training job, and the state that every process keeps alike: the loss scale.

use crate::stage::{LossScale, mixed};
use serde::{Deserialize, Serialize};

/// The smallest loss scale at which a gradient that is not finite counts as an overflow. Below it, it follows
/// [`OnNonFinite`](crate::train::OnNonFinite).
const LEAST_SCALE: f64 = 1.0 / 16384.0;

/// The factor of the loss in backwards ([`LossScale`]).
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct ScaleProgress {
    /// The factor of the next step.
    pub factor: f64,
    /// Steps in a row without overflow since it last changed.
    pub steps: u32,
}

/// The progress of a training job.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Progress {
    /// The number of optimizer steps.
    pub steps: u64,
    /// Batches run forward and backward; more than steps if several batches count as one step.
    pub batches: u64,
    /// Samples in these batches: the position of a loader that goes through the data in order.
    pub samples: u64,
    /// The seed of forwards; see [`Builder::seed`](crate::train::Builder::seed).
    pub seed: Option<u64>,
    /// The loss scale; see [`Precision`](crate::stage::Precision).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<ScaleProgress>,
}

/// How the losses of a batch are scaled in their backwards.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Scaled {
    /// The factor.
    pub(crate) factor: f64,
    /// True if a gradient that is not finite counts as an overflow, which a smaller factor avoids.
    pub(crate) may_overflow: bool,
}

impl Default for Scaled {
    fn default() -> Self {
        Self { factor: 1.0, may_overflow: false }
    }
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
    scaling: Option<LossScale>,
    /// True if gradients that were taken had overflowed: a step of the caller's own without them says nothing of the
    /// scale.
    overflowed: bool,
}

impl Training {
    pub(crate) fn new(seed: Option<u64>, scaling: Option<LossScale>) -> Self {
        let loss_scale = scaling.map(|scaling| ScaleProgress { factor: scaling.initial, steps: 0 });
        Self { progress: Progress { seed, loss_scale, ..Progress::default() }, scaling, ..Self::default() }
    }

    /// How losses of the next batch are scaled.
    pub(crate) fn scaled(&self) -> Scaled {
        match self.progress.loss_scale {
            None => Scaled::default(),
            Some(ScaleProgress { factor, .. }) => Scaled { factor, may_overflow: factor >= LEAST_SCALE },
        }
    }

    pub(crate) fn progress(&self) -> Progress {
        self.progress
    }

    /// Returns true if there are unapplied gradients.
    pub(crate) fn is_mid_step(&self) -> bool {
        self.pending > 0
    }

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
        let overflowed = std::mem::take(&mut self.overflowed);
        if let (Some(scaling), Some(scale), false) = (self.scaling, &mut self.progress.loss_scale, overflowed) {
            scale.steps += 1;
            if scale.steps >= scaling.interval {
                *scale = ScaleProgress { factor: scale.factor * scaling.growth, steps: 0 };
            }
        }
    }

    /// Records gradients that were taken and had overflowed.
    pub(crate) fn took_overflow(&mut self) {
        self.overflowed();
        self.overflowed = true;
    }

    /// Records a step that is skipped because a scaled gradient overflowed.
    pub(crate) fn overflowed(&mut self) {
        self.skipped();
        if let (Some(scaling), Some(scale)) = (self.scaling, &mut self.progress.loss_scale) {
            *scale = ScaleProgress { factor: scale.factor * scaling.backoff, steps: 0 };
        }
    }

    pub(crate) fn skipped(&mut self) {
        self.pending = 0;
        self.skipped += 1;
    }

    pub(crate) fn skipped_steps(&self) -> u64 {
        self.skipped
    }

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

    /// Resumes from a checkpoint. If that has no seed or no loss scale, the job keeps its own.
    pub(crate) fn resume(&mut self, saved: Progress) {
        let seed = saved.seed.or(self.progress.seed);
        let loss_scale = self.progress.loss_scale.map(|own| saved.loss_scale.unwrap_or(own));
        self.progress = Progress { seed, loss_scale, ..saved };
        self.overflowed = false;
    }
}
