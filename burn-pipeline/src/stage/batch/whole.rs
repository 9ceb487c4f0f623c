//! A batch: the input, the target of the loss, and extra inputs of the stages.

use super::loss::{LOSS_SEED, loss_seed};
use super::split::{Cuttable, MicrobatchError, Split};
use crate::payload::{AnyTensor, Boundary, Payload, PayloadPart};
use std::collections::BTreeMap;

/// One training or evaluation batch: an input, the target of the loss, and extra inputs of the stages.
///
/// Every tensor is cut along dimension 0 unless a `split_` method says otherwise.
#[derive(Clone, Debug)]
pub struct Batch {
    pub(super) input: Cuttable,
    pub(super) target: Option<Cuttable>,
    pub(super) extras: BTreeMap<String, Cuttable>,
    /// Split rules that were given before their tensors; the target's under `None`.
    pub(super) early: BTreeMap<Option<String>, Vec<Split>>,
    /// The microbatches, if the batch was given as microbatches; the fields above are then the first one's.
    pub(super) pieces: Vec<Batch>,
    /// The method that was called on a batch of given microbatches, which each have their own.
    pub(super) misplaced: Option<&'static str>,
}

impl Batch {
    /// A batch of inputs for the first stage.
    pub fn new(input: impl Boundary) -> Self {
        let input = Cuttable { payload: input.into_payload(), splits: None };
        Self {
            input,
            target: None,
            extras: BTreeMap::new(),
            early: BTreeMap::new(),
            pieces: Vec::new(),
            misplaced: None,
        }
    }

    /// Adds the target that the loss compares with.
    pub fn target(mut self, target: impl Boundary) -> Self {
        self.note("target");
        self.target = Some(Cuttable { payload: target.into_payload(), splits: self.early.remove(&None) });
        self
    }

    /// Adds an extra, by name: a value that stages read besides their input (see `Stage::extras`). Plain numbers and
    /// strings are the same for all microbatches, unless the microbatches are given ([`Batch::from_microbatches`]).
    pub fn extra(mut self, name: impl Into<String>, value: impl Boundary) -> Self {
        self.note("extra");
        let name = name.into();
        let splits = self.early.remove(&Some(name.clone()));
        self.extras.insert(name, Cuttable { payload: value.into_payload(), splits });
        self
    }

    /// Sets how the input's tensors are cut, one rule per tensor.
    pub fn split_input(mut self, splits: Vec<Split>) -> Self {
        self.note("split_input");
        self.input.splits = Some(splits);
        self
    }

    /// Sets how the target's tensors are cut, one rule per tensor.
    pub fn split_target(mut self, splits: Vec<Split>) -> Self {
        self.note("split_target");
        match &mut self.target {
            Some(target) => target.splits = Some(splits),
            None => _ = self.early.insert(None, splits),
        }
        self
    }

    /// Sets how an extra's tensors are cut, one rule per tensor.
    pub fn split_extra(mut self, name: &str, splits: Vec<Split>) -> Self {
        self.note("split_extra");
        match self.extras.get_mut(name) {
            Some(extra) => extra.splits = Some(splits),
            None => _ = self.early.insert(Some(name.to_owned()), splits),
        }
        self
    }

    /// The batch with its input, target and extras replaced, and without given microbatches.
    pub(super) fn map_parts(self, change: impl Fn(Cuttable) -> Cuttable) -> Self {
        let extras = self.extras.into_iter().map(|(name, extra)| (name, change(extra))).collect();
        let (input, target) = (change(self.input), self.target.map(change));
        Self { input, target, extras, early: self.early, pieces: Vec::new(), misplaced: None }
    }

    /// Remembers a method that has no meaning for a batch of given microbatches, so that the cut refuses it.
    fn note(&mut self, method: &'static str) {
        if !self.pieces.is_empty() {
            self.misplaced.get_or_insert(method);
        }
    }

    /// The input of all samples.
    pub(crate) fn whole_input(&self) -> &Payload {
        &self.input.payload
    }

    /// The target of all samples, if there is one.
    pub(crate) fn whole_target(&self) -> Option<&Payload> {
        self.target.as_ref().map(|target| &target.payload)
    }

    /// The extras that a stage reads, for all samples, in the order of their names; [`LOSS_SEED`] is 1.
    ///
    /// # Errors
    /// Returns [`MicrobatchError`] if the batch does not hold one of them.
    pub(crate) fn whole_extra(&self, stage: usize, names: &[&str]) -> Result<Payload, MicrobatchError> {
        let mut parts = Vec::new();
        for &name in names {
            if name == LOSS_SEED {
                let device = self.input.payload.tensors().next().map(AnyTensor::device).unwrap_or_default();
                parts.push(PayloadPart::Tensor(loss_seed(1.0, &device)));
                continue;
            }
            let missing = || MicrobatchError::MissingExtra { stage, name: name.to_owned() };
            parts.extend(self.extras.get(name).ok_or_else(missing)?.payload.parts().cloned());
        }
        Ok(Payload::from_parts(parts))
    }

    /// Returns true if the batch has a target.
    pub fn has_target(&self) -> bool {
        self.target.is_some()
    }
}
