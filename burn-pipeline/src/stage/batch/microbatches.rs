//! Cutting a batch into microbatches, and joining outputs back.
//!
//! Guarantees: pieces differ in size by at most one sample, earlier ones are the larger ones, and none is empty:
//! a batch of fewer samples than microbatches asked for gives as many microbatches as it has samples
//! ([`Microbatches::len`] says how many). Inputs, extras and targets are cut alike. Joining pieces of equal
//! form gives the batch back.
//!
//! Behaviour follows PyTorch's `_microbatch.py` (`TensorChunkSpec`, `_Replicate`, `split_args_kwargs_into_chunks`,
//! `merge_chunks`), without its trap of cutting targets into more pieces than inputs.

use super::loss::{LOSS_SEED, loss_seed};
use crate::stage::boundary::AnyTensor;
use crate::stage::boundary::{Boundary, Payload, PayloadPart};
use std::collections::BTreeMap;

/// How one tensor of a batch is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Split {
    /// Along this dimension.
    Dim(usize),
    /// Not at all: every microbatch gets the whole tensor.
    Replicate,
}

/// Why a batch cannot be cut, or outputs not be joined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MicrobatchError {
    /// The number of split rules is not the number of tensors.
    #[error("{what} holds {tensors} tensor(s), but {splits} split rule(s) were given; give one a tensor")]
    SplitCount {
        /// Input, target or an extra's name.
        what: String,
        /// Tensors there.
        tensors: usize,
        /// Rules given.
        splits: usize,
    },
    /// The dimension to cut does not exist.
    #[error(
        "tensor {tensor} of {what} has rank {rank} and cannot be cut along dimension {dim}; name an existing one or `Split::Replicate`"
    )]
    NoSuchDim {
        /// Input, target or an extra's name.
        what: String,
        /// Which tensor, from 0.
        tensor: usize,
        /// Its rank.
        rank: usize,
        /// The dimension asked for.
        dim: usize,
    },
    /// Tensors disagree on the number of samples.
    #[error(
        "tensor {tensor} of {what} has {got} samples along the dimension to cut, others have {expected}; all must agree"
    )]
    SampleCount {
        /// Input, target or an extra's name.
        what: String,
        /// Which tensor, from 0.
        tensor: usize,
        /// Samples it has.
        got: usize,
        /// Samples of the others.
        expected: usize,
    },
    /// Split rules for something that the batch does not hold.
    #[error("split rules were given for {what}, which the batch does not hold; check its name, or add it")]
    SplitOfNothing {
        /// The target, or an extra's name.
        what: String,
    },
    /// Nothing can be cut.
    #[error("the batch has no tensor to cut along a dimension, so it has no samples; give at least one a `Split::Dim`")]
    NothingToCut,
    /// A batch of zero samples.
    #[error("the batch has no samples")]
    Empty,
    /// An extra that a stage reads is not in the batch.
    #[error("stage {stage} reads the extra `{name}`, which the batch does not hold; add it with `Batch::extra`")]
    MissingExtra {
        /// The stage.
        stage: usize,
        /// The extra's name.
        name: String,
    },
    /// Some microbatches of a batch that came cut have a target, and some have none.
    #[error("{targets} of {pieces} microbatches have a target; give one to all or to none")]
    SomeTargets {
        /// Microbatches with a target.
        targets: usize,
        /// Microbatches.
        pieces: usize,
    },
    /// Outputs to join do not have the same form.
    #[error("the outputs of microbatches do not have the same form and cannot be joined")]
    Structure,
}

/// A payload with its split rules; `None` is dimension 0 for every tensor.
#[derive(Clone, Debug)]
pub(super) struct Cuttable {
    pub(super) payload: Payload,
    pub(super) splits: Option<Vec<Split>>,
}

impl Cuttable {
    fn split(&self, what: &str, tensor: usize) -> Result<Split, MicrobatchError> {
        let Some(splits) = &self.splits else { return Ok(Split::Dim(0)) };
        splits.get(tensor).copied().ok_or_else(|| self.count_error(what, splits.len()))
    }

    /// How a tensor is cut, where the rules are known to fit.
    pub(super) fn rule(&self, tensor: usize) -> Split {
        self.splits.as_ref().and_then(|splits| splits.get(tensor).copied()).unwrap_or(Split::Dim(0))
    }

    fn count_error(&self, what: &str, splits: usize) -> MicrobatchError {
        MicrobatchError::SplitCount { what: what.to_owned(), tensors: self.payload.tensors().count(), splits }
    }

    /// Checks the rules and returns the number of samples, which must be `expected` if that is known.
    fn samples(&self, what: &str, mut expected: Option<usize>) -> Result<Option<usize>, MicrobatchError> {
        if let Some(splits) = self.splits.as_ref().filter(|splits| splits.len() != self.payload.tensors().count()) {
            return Err(self.count_error(what, splits.len()));
        }
        for (index, tensor) in self.payload.tensors().enumerate() {
            let Split::Dim(dim) = self.split(what, index)? else { continue };
            let (what, tensor, rank) = (what.to_owned(), index, tensor.rank());
            let Some(&got) = self.payload.tensors().nth(index).and_then(|t| t.shape().get(dim).copied()).as_ref()
            else {
                return Err(MicrobatchError::NoSuchDim { what, tensor, rank, dim });
            };
            match expected {
                Some(expected) if expected != got => {
                    return Err(MicrobatchError::SampleCount { what, tensor, got, expected });
                }
                _ => expected = Some(got),
            }
        }
        Ok(expected)
    }

    fn piece(&self, what: &str, start: usize, end: usize) -> Result<Payload, MicrobatchError> {
        self.payload.clone().map_tensors(|index, tensor| match self.split(what, index)? {
            Split::Replicate => Ok(tensor),
            Split::Dim(dim) => Ok(tensor.narrow(dim, start, end)),
        })
    }
}

/// One training or evaluation batch: an input, and what the loss and the stages read beside it.
///
/// Every tensor is cut along dimension 0 unless told otherwise.
#[derive(Clone, Debug)]
pub struct Batch {
    pub(super) input: Cuttable,
    pub(super) target: Option<Cuttable>,
    pub(super) extras: BTreeMap<String, Cuttable>,
    /// Split rules that came before what they are for: the target's under no name.
    pub(super) early: BTreeMap<Option<String>, Vec<Split>>,
    /// The microbatches, of a batch that is cut already; the fields above are then those of the first.
    pub(super) pieces: Vec<Batch>,
}

impl Batch {
    /// A batch of inputs for the first stage.
    pub fn new(input: impl Boundary) -> Self {
        let input = Cuttable { payload: input.into_payload(), splits: None };
        Self { input, target: None, extras: BTreeMap::new(), early: BTreeMap::new(), pieces: Vec::new() }
    }

    /// Adds what the loss compares with.
    pub fn target(mut self, target: impl Boundary) -> Self {
        self.target = Some(Cuttable { payload: target.into_payload(), splits: self.early.remove(&None) });
        self
    }

    /// Adds something that stages read beside their input, by name (see `Stage::extras`).
    pub fn extra(mut self, name: impl Into<String>, value: impl Boundary) -> Self {
        let name = name.into();
        let splits = self.early.remove(&Some(name.clone()));
        self.extras.insert(name, Cuttable { payload: value.into_payload(), splits });
        self
    }

    /// Says how the input's tensors are cut, one rule a tensor.
    pub fn split_input(mut self, splits: Vec<Split>) -> Self {
        self.input.splits = Some(splits);
        self
    }

    /// Says how the target's tensors are cut, one rule a tensor.
    pub fn split_target(mut self, splits: Vec<Split>) -> Self {
        match &mut self.target {
            Some(target) => target.splits = Some(splits),
            None => _ = self.early.insert(None, splits),
        }
        self
    }

    /// Says how an extra's tensors are cut, one rule a tensor.
    pub fn split_extra(mut self, name: &str, splits: Vec<Split>) -> Self {
        match self.extras.get_mut(name) {
            Some(extra) => extra.splits = Some(splits),
            None => _ = self.early.insert(Some(name.to_owned()), splits),
        }
        self
    }

    /// The input of all samples.
    pub fn whole_input(&self) -> &Payload {
        &self.input.payload
    }

    /// The target of all samples, if there is one.
    pub fn whole_target(&self) -> Option<&Payload> {
        self.target.as_ref().map(|target| &target.payload)
    }

    /// What a stage reads beside its input for all samples: its named extras in order, with 1 for [`LOSS_SEED`].
    ///
    /// # Errors
    /// If the batch does not hold one of them.
    pub fn whole_extra(&self, stage: usize, names: &[&str]) -> Result<Payload, MicrobatchError> {
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

    /// Has it a target?
    pub fn has_target(&self) -> bool {
        self.target.is_some()
    }

    /// Checks all split rules and cuts into at most `count` microbatches.
    ///
    /// # Errors
    /// If rules do not fit tensors, or tensors disagree on the number of samples.
    pub fn cut(self, count: usize) -> Result<Microbatches, MicrobatchError> {
        if !self.pieces.is_empty() {
            return self.cut_ready();
        }
        if let Some(name) = self.early.keys().next() {
            let what = name.as_ref().map_or("the target".to_owned(), |name| format!("the extra `{name}`"));
            return Err(MicrobatchError::SplitOfNothing { what });
        }
        let mut samples = self.input.samples("the input", None)?;
        for (name, extra) in &self.extras {
            samples = extra.samples(&format!("the extra `{name}`"), samples)?;
        }
        if let Some(target) = &self.target {
            samples = target.samples("the target", samples)?;
        }
        let samples = samples.ok_or(MicrobatchError::NothingToCut)?;
        if samples == 0 || count == 0 {
            return Err(MicrobatchError::Empty);
        }
        Ok(Microbatches { batch: self, bounds: bounds(samples, count.min(samples)) })
    }
}

/// Boundaries of `count` pieces of `samples` samples; the first `samples mod count` pieces hold one more.
fn bounds(samples: usize, count: usize) -> Vec<usize> {
    let (size, larger) = (samples / count, samples % count);
    (0..=count).map(|piece| piece * size + piece.min(larger)).collect()
}

/// A batch that has been cut; pieces are views, made when asked for.
#[derive(Clone, Debug)]
pub struct Microbatches {
    batch: Batch,
    bounds: Vec<usize>,
}

impl Microbatches {
    /// How many microbatches there are.
    pub fn len(&self) -> usize {
        self.bounds.len() - 1
    }

    /// Never: there is always at least one.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Samples of the whole batch.
    pub fn samples(&self) -> usize {
        self.bounds[self.len()]
    }

    /// Samples of one microbatch.
    pub fn size(&self, microbatch: usize) -> usize {
        self.bounds[microbatch + 1] - self.bounds[microbatch]
    }

    /// Has the batch a target?
    pub fn has_target(&self) -> bool {
        self.batch.has_target()
    }

    /// The whole batch, as it was before it was cut; every part has the form that its microbatches have.
    pub fn whole(&self) -> &Batch {
        &self.batch
    }

    pub(super) fn from_bounds(batch: Batch, bounds: Vec<usize>) -> Self {
        Self { batch, bounds }
    }

    /// The batch that a microbatch is a piece of: itself, of a batch that came cut.
    pub(super) fn piece_batch(&self, microbatch: usize) -> &Batch {
        self.batch.pieces.get(microbatch).unwrap_or(&self.batch)
    }

    /// Whole batches, whose forms are those of all microbatches: one, or the pieces of a batch that came cut.
    pub fn wholes(&self) -> impl Iterator<Item = &Batch> {
        let pieces = self.batch.pieces.iter();
        pieces.chain(std::iter::once(&self.batch).filter(|batch| batch.pieces.is_empty()))
    }

    /// One microbatch's input.
    ///
    /// # Errors
    /// None after a successful cut; the type is shared with the other parts.
    pub fn input(&self, microbatch: usize) -> Result<Payload, MicrobatchError> {
        self.piece(&self.piece_batch(microbatch).input, "the input", microbatch)
    }

    /// One microbatch's target, if there is one.
    ///
    /// # Errors
    /// As [`Microbatches::input`].
    pub fn target(&self, microbatch: usize) -> Result<Option<Payload>, MicrobatchError> {
        self.piece_batch(microbatch)
            .target
            .as_ref()
            .map(|target| self.piece(target, "the target", microbatch))
            .transpose()
    }

    /// What a stage reads beside its input for one microbatch: its named extras in order.
    ///
    /// # Errors
    /// If the batch does not hold one of them.
    pub fn extra(&self, stage: usize, names: &[&str], microbatch: usize) -> Result<Payload, MicrobatchError> {
        let mut parts = Vec::new();
        for &name in names {
            let missing = || MicrobatchError::MissingExtra { stage, name: name.to_owned() };
            let extra = self.piece_batch(microbatch).extras.get(name).ok_or_else(missing)?;
            parts.extend(self.piece(extra, name, microbatch)?.into_parts());
        }
        Ok(Payload::from_parts(parts))
    }

    fn piece(&self, part: &Cuttable, what: &str, microbatch: usize) -> Result<Payload, MicrobatchError> {
        if !self.batch.pieces.is_empty() {
            return Ok(part.payload.clone());
        }
        part.piece(what, self.bounds[microbatch], self.bounds[microbatch + 1])
    }
}
