//! What the engine of captured stages holds: programs, and the microbatches that run through them.

use super::elsewhere::UntrackedDraws;
use super::microbatch_run::{MicrobatchRun, RunningProgram};
use super::programs::Programs;
use super::replayable::Replayable;
use crate::stage::engine::call::ForwardCall;
use crate::stage::engine::casts::refuse_types;
use crate::stage::engine::eager::Eager;
use crate::stage::engine::function::StageCode;
use crate::stage::engine::recording::{Parameters, Recorded, Refusal, Signature, record};
use crate::stage::engine::seeded::refuse_draws;
use crate::stage::error::StageError;
use crate::stage::module::Stage;
use crate::stage::options::{Members, StageOptions};
use crate::stage::random::ForwardSeed;
use burn::tensor::Device;
use std::collections::HashMap;
use std::sync::Arc;

const CHANGES_BUFFERS: &str = "its forward changes a buffer (running statistics), which a replay would not";

/// Runs a stage from its captured programs; see the module's header.
#[derive(Default)]
pub(in crate::stage) struct Captured {
    /// True if a refused capture is an error, not a reason to run eagerly.
    strict: bool,
    pub(super) capture: Option<Device>,
    pub(super) programs: Programs,
    /// Why the stage runs eagerly, once a capture was refused.
    pub(super) refused: Option<String>,
    /// The other ranks that hold the stage, until its exchanges were compared with theirs.
    members: Option<Members>,
    /// True if several ranks compute each forward together.
    grouped: bool,
    /// True if the warning was given that programs change from forward to forward.
    warned: bool,
    pub(super) seed: ForwardSeed,
    /// Draws that are not recorded with forwards.
    elsewhere: UntrackedDraws,
    /// Indices of the outputs that had no gradient in the last backward.
    pub(super) unused: Vec<usize>,
    pub(super) forwarded: HashMap<usize, MicrobatchRun>,
    pub(super) halfway: HashMap<usize, MicrobatchRun>,
    /// Programs of microbatches whose forward ran once and will run again.
    pub(super) again: HashMap<usize, Arc<Replayable>>,
    /// The forward and the backward that run in pieces.
    pub(super) forward: Option<RunningProgram>,
    pub(super) backward: Option<RunningProgram>,
    pub(super) eager: Eager,
}

impl Captured {
    /// A new engine; `strict` makes a refused capture an error. `eager` runs what cannot be captured.
    pub(in crate::stage) fn new(strict: bool, options: &StageOptions, eager: Eager) -> Self {
        let (members, grouped) = (options.members.clone(), options.grouped);
        Self { strict, programs: Programs::new(options), members, grouped, eager, ..Self::default() }
    }

    /// The programs for a call: records the forward, unless its turn has not come, and returns the programs of an
    /// equal recording, or new ones. `None` if the stage cannot be captured.
    pub(super) fn programs_for<M: Stage>(
        &mut self,
        code: &StageCode<'_, M>,
        call: &ForwardCall,
        parameters: &Parameters,
    ) -> Result<Option<Arc<Replayable>>, StageError> {
        if self.refused.is_some() {
            return Ok(None);
        }
        let signature = Signature::new(call, parameters, &self.unused);
        if let Some(known) = self.programs.unrecorded(&signature) {
            return Ok(Some(known));
        }
        let (capture, unused, device) = (&mut self.capture, &self.unused, parameters.device(call).inner());
        let mut record = || record(capture, code, call, parameters, unused);
        let recorded = match (code.module.skip_capture(), self.seed.of(call.microbatch)) {
            (Some(reason), _) => Err(Refusal::Cannot(reason.to_owned())),
            (None, Some(seed)) => self.elsewhere.watched(seed, &device, record)?,
            (None, None) => record(),
        };
        let made = match recorded {
            Ok(recorded) if recorded.changes_buffers => {
                refuse_types(&recorded)?;
                self.eager.seeded.learn(Signature::new(call, parameters, &[]), &recorded);
                self.refuse(CHANGES_BUFFERS.to_owned())?
            }
            Ok(recorded) => {
                if self.grouped {
                    refuse_draws(&recorded, self.seed.0.is_some())?;
                }
                Some(self.known_or_new(recorded, signature, parameters)?)
            }
            Err(Refusal::Stage(error)) => return Err(error),
            Err(Refusal::Cannot(reason)) => {
                self.eager.seeded.unseen = true;
                self.refuse(reason)?
            }
        };
        if let Some(members) = self.members.take() {
            members(made.as_ref().map(|made| made.recording.exchanges()));
        }
        Ok(made)
    }

    /// Runs the stage eagerly from now on, or returns an error if the engine is strict.
    fn refuse(&mut self, reason: String) -> Result<Option<Arc<Replayable>>, StageError> {
        if self.strict {
            return Err(StageError::Unsupported(format!("the stage cannot be captured: {reason}")));
        }
        tracing::warn!(reason, "stage cannot be captured: its backward is not split");
        self.refused = Some(reason);
        Ok(None)
    }

    fn known_or_new(
        &mut self,
        recorded: Recorded,
        signature: Signature,
        parameters: &Parameters,
    ) -> Result<Arc<Replayable>, StageError> {
        let changed = match self.programs.find(&signature, &recorded) {
            Ok(known) => return Ok(known),
            Err(Some(difference)) if self.programs.takes_turns(&signature) && !recorded.reads_microbatch => {
                return Err(StageError::Changed { difference, forwards: self.programs.record_every });
            }
            Err(changed) => changed,
        };
        refuse_types(&recorded)?;
        if let Some(changed) = changed.filter(|_| !std::mem::replace(&mut self.warned, true)) {
            tracing::warn!(
                changed,
                "the stage's forward is not the one that was captured, and is captured anew: a plain value, or \
                 something that it reads from the host, changed; give it to the batch as a tensor (`Batch::extra`), \
                 and it is captured once"
            );
        }
        self.elsewhere.doubt();
        let began = std::time::Instant::now();
        let made = self.programs.insert(recorded, signature, parameters.ids.clone());
        let milliseconds = began.elapsed().as_secs_f64() * 1e3;
        tracing::info!(milliseconds, deferrable = made.programs.deferrable(), "stage captured: its backward is split");
        Ok(made)
    }
}
