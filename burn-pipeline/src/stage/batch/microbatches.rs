//! A batch that has been cut into microbatches.
//!
//! Guarantees: the sizes of microbatches differ by at most one sample, larger ones come first, and none is empty: a
//! batch with fewer samples than the requested microbatches gives one microbatch per sample ([`Microbatches::len`]).
//! Inputs, extras and targets are cut at the same samples, so every target matches its input. Pieces are views, made
//! on request; joined again they equal the batch.
//!
//! Follows PyTorch's `_microbatch.py` (`TensorChunkSpec`, `_Replicate`, `split_args_kwargs_into_chunks`,
//! `merge_chunks`), which, unlike this, can cut a target into more pieces than its input.

use super::split::{Cuttable, MicrobatchError, Split};
use super::whole::Batch;
use crate::payload::{AnyTensor, Payload, PayloadPart, TensorKind};

impl Batch {
    /// Checks all split rules and cuts the batch into at most `count` microbatches.
    ///
    /// # Errors
    /// Returns [`MicrobatchError`] if rules do not fit tensors, or tensors disagree on the number of samples.
    pub fn cut(self, count: usize) -> Result<Microbatches, MicrobatchError> {
        if !self.pieces.is_empty() {
            return self.cut_given();
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

/// A batch that has been cut; pieces are views, made on request.
#[derive(Clone, Debug)]
pub struct Microbatches {
    pub(super) batch: Batch,
    pub(super) bounds: Vec<usize>,
}

impl Microbatches {
    /// The number of microbatches.
    pub fn len(&self) -> usize {
        self.bounds.len() - 1
    }

    /// Always false: there is at least one microbatch.
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

    /// Returns true if the batch has a target.
    pub fn has_target(&self) -> bool {
        self.batch.has_target()
    }

    /// Returns true if the input or an extra holds a float tensor.
    pub(crate) fn has_floats(&self) -> bool {
        let parts = |batch: &Batch| {
            let mut parts = std::iter::once(&batch.input).chain(batch.extras.values());
            parts.any(|part| part.payload.tensors().any(|tensor| tensor.kind() == TensorKind::Float))
        };
        self.wholes().any(parts)
    }

    /// The tensors of the input, or of the extra of this name, each with its rule; none if the batch does not hold it.
    /// In a batch that was given as microbatches, those of the first one.
    pub(crate) fn ruled(&self, extra: Option<&str>) -> Vec<(&AnyTensor, Split)> {
        let batch = self.piece_batch(0);
        let part = extra.map_or(Some(&batch.input), |name| batch.extras.get(name));
        let tensors = part.into_iter().flat_map(|part| part.payload.tensors().enumerate().map(move |at| (part, at)));
        tensors.map(|(part, (index, tensor))| (tensor, part.rule(index))).collect()
    }

    /// The names of its extras.
    pub(crate) fn extras(&self) -> impl Iterator<Item = &String> {
        self.piece_batch(0).extras.keys()
    }

    /// One microbatch as a batch of its own.
    pub(crate) fn alone(&self, microbatch: usize) -> Batch {
        let piece = |part: Cuttable| Cuttable { payload: self.piece(&part, microbatch), ..part };
        self.piece_batch(microbatch).clone().map_parts(piece)
    }

    /// The batch that a microbatch is cut from; the microbatch itself if the batch was given as microbatches.
    pub(super) fn piece_batch(&self, microbatch: usize) -> &Batch {
        self.batch.pieces.get(microbatch).unwrap_or(&self.batch)
    }

    /// The batches that together hold the tensors of all microbatches: the batch itself, or the given microbatches.
    pub(crate) fn wholes(&self) -> impl Iterator<Item = &Batch> {
        let pieces = self.batch.pieces.iter();
        pieces.chain(std::iter::once(&self.batch).filter(|batch| batch.pieces.is_empty()))
    }

    /// One microbatch's input.
    pub fn input(&self, microbatch: usize) -> Payload {
        self.piece(&self.piece_batch(microbatch).input, microbatch)
    }

    /// One microbatch's target, if there is one.
    pub fn target(&self, microbatch: usize) -> Option<Payload> {
        self.piece_batch(microbatch).target.as_ref().map(|target| self.piece(target, microbatch))
    }

    /// The extras that a stage reads for one microbatch, in the order of their names.
    ///
    /// # Errors
    /// Returns [`MicrobatchError`] if the batch does not hold one of them.
    pub fn extra(&self, stage: usize, names: &[&str], microbatch: usize) -> Result<Payload, MicrobatchError> {
        let mut parts = Vec::new();
        for &name in names {
            let missing = || MicrobatchError::MissingExtra { stage, name: name.to_owned() };
            let extra = self.piece_batch(microbatch).extras.get(name).ok_or_else(missing)?;
            parts.extend(self.piece(extra, microbatch).into_parts());
        }
        Ok(Payload::from_parts(parts))
    }

    /// The checksum with which processes compare their batches: CRC-32 of names, tags, plain values, and every tensor's
    /// element type, shape and values, read from its device.
    ///
    /// # Errors
    /// Returns the device's message if a device cannot be read.
    pub(crate) fn checksum(&self) -> Result<u32, String> {
        let mut hasher = crc32fast::Hasher::new();
        for batch in self.wholes() {
            let extras = batch.extras.iter().map(|(name, extra)| (name.as_str(), extra));
            let target = batch.target.iter().map(|target| ("target", target));
            for (name, part) in [("input", &batch.input)].into_iter().chain(target).chain(extras) {
                hasher.update(name.as_bytes());
                add(&mut hasher, part)?;
            }
        }
        Ok(hasher.finalize())
    }

    fn piece(&self, part: &Cuttable, microbatch: usize) -> Payload {
        if !self.batch.pieces.is_empty() {
            return part.payload.clone();
        }
        part.piece(self.bounds[microbatch], self.bounds[microbatch + 1])
    }
}

/// Adds a part to a checksum.
fn add(hasher: &mut crc32fast::Hasher, part: &Cuttable) -> Result<(), String> {
    for part in part.payload.parts() {
        match part {
            PayloadPart::Host(value) => hasher.update(value.to_string().as_bytes()),
            PayloadPart::Tag(tag) => hasher.update(&(*tag as u64).to_le_bytes()),
            PayloadPart::Tensor(tensor) => tensor.add_to(hasher)?,
        }
    }
    Ok(())
}
