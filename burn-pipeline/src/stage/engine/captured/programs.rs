//! The programs that a stage keeps: the most recently used ones, up to a limit.
//!
//! Guarantees: never more than the limit, whatever shapes occur and whatever the forward reads. Equal constants of
//! several programs are stored once, on the host and on the device. Microbatches in flight keep the programs that
//! they run.

use super::replayable::{Constant, Replayable};
use crate::payload::AnyTensor;
use crate::program::{Bf16, StagePrograms};
use crate::stage::engine::recording::{Recorded, Signature};
use crate::stage::options::{PROGRAMS, StageOptions};
use burn::backend::ir::TensorId;
use burn::module::ParamId;
use burn::tensor::{Device, TensorData};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// A bounded number of programs.
#[derive(Default)]
pub(super) struct Programs {
    limit: usize,
    compile: bool,
    /// Set if compiled programs round the operands of matmuls.
    rounded: Option<Bf16>,
    /// How many forwards share one recording.
    pub(super) record_every: usize,
    /// The most recently used first.
    kept: Vec<Entry>,
    constants: Vec<Weak<Constant>>,
}

/// Programs, and the number of forwards that ran them unrecorded since a recording was last equal to theirs.
struct Entry {
    stage: Arc<Replayable>,
    unrecorded: usize,
    /// True if its forward read the number of its microbatch, so that each forward needs a recording.
    reads_microbatch: bool,
}

impl Programs {
    /// Keeps as many programs as the options say, at least one.
    pub(super) fn new(options: &StageOptions) -> Self {
        let (limit, record_every) = (options.programs.unwrap_or(PROGRAMS).max(1), options.record_every.max(1));
        let (compile, rounded) = (options.compile, options.rounded);
        Self { limit, compile, rounded, record_every, kept: Vec::new(), constants: Vec::new() }
    }

    /// The programs of a call that need not be recorded.
    pub(super) fn unrecorded(&mut self, signature: &Signature) -> Option<Arc<Replayable>> {
        if !self.takes_turns(signature) {
            return None;
        }
        let place = self.kept.iter().position(|known| known.stage.signature == *signature)?;
        let known = &mut self.kept[place];
        known.unrecorded += 1;
        if known.reads_microbatch || known.unrecorded >= self.record_every {
            return None;
        }
        self.kept[..=place].rotate_right(1);
        Some(self.kept[0].stage.clone())
    }

    /// Returns true if several forwards of a signature share one recording. Plain values, which a signature does not
    /// compare, need one each.
    pub(super) fn takes_turns(&self, signature: &Signature) -> bool {
        self.record_every > 1 && !signature.has_plain_values()
    }

    /// Finds the programs of an equal recording. `Err` says how the recording differs from the last one of this
    /// signature, if there is one.
    pub(super) fn find(
        &mut self,
        signature: &Signature,
        recorded: &Recorded,
    ) -> Result<Arc<Replayable>, Option<String>> {
        let mut changed = None;
        for place in 0..self.kept.len() {
            let known = &self.kept[place];
            if known.stage.signature != *signature {
                continue;
            }
            let Some(difference) = difference(recorded, &known.stage) else {
                self.kept[..=place].rotate_right(1);
                self.kept[0].unrecorded = 0;
                return Ok(self.kept[0].stage.clone());
            };
            changed.get_or_insert(difference);
        }
        Err(changed)
    }

    /// Makes the programs of a recording and keeps them, replacing the least recently used ones.
    pub(super) fn insert(
        &mut self,
        recorded: Recorded,
        signature: Signature,
        parameters: Vec<ParamId>,
    ) -> Arc<Replayable> {
        let Recorded { mut recording, output, device, reads_microbatch, .. } = recorded;
        let programs = Arc::new(match self.compile {
            true => StagePrograms::compiled(&recording, &device, self.rounded),
            false => StagePrograms::new(&recording),
        });
        let mut constants: Vec<(TensorId, Arc<Constant>)> = Vec::with_capacity(recording.constants.len());
        for (id, data) in &mut recording.constants {
            let constant = self.constant(data, &device);
            *data = constant.data.clone();
            constants.push((*id, constant));
        }
        let (recording, partial) = (Arc::new(recording), Mutex::default());
        let made = Arc::new(Replayable { programs, recording, output, parameters, constants, signature, partial });
        self.kept.truncate(self.limit - 1);
        self.kept.insert(0, Entry { stage: made.clone(), unrecorded: 0, reads_microbatch });
        made
    }

    fn constant(&mut self, data: &Arc<TensorData>, device: &Device) -> Arc<Constant> {
        self.constants.retain(|constant| constant.strong_count() > 0);
        if let Some(known) = self.constants.iter().filter_map(Weak::upgrade).find(|known| known.data == *data) {
            return known;
        }
        let tensor = AnyTensor::from_data(TensorData::clone(data), device).into_dispatch();
        let made = Arc::new(Constant { data: data.clone(), tensor });
        self.constants.push(Arc::downgrade(&made));
        made
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Replayable>> {
        self.kept.iter().map(|known| &known.stage)
    }
}

fn difference(recorded: &Recorded, known: &Replayable) -> Option<String> {
    let changed = recorded.recording.difference(&known.recording);
    changed.or_else(|| (recorded.output != known.output).then(|| "the loss's weight, or a tag, changed".to_owned()))
}
