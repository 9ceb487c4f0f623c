//! How the tensors of a batch are cut into microbatches, and the errors.

use crate::payload::{AnyTensor, Payload};

/// How one tensor of a batch is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Split {
    /// Along this dimension.
    Dim(usize),
    /// Not at all: every microbatch gets the whole tensor.
    Replicate,
}

/// Why a batch cannot be cut, or outputs cannot be joined. `what` is the input, the target, or an extra by name;
/// `tensor` is the index of a tensor there, from 0.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum MicrobatchError {
    /// The number of split rules is not the number of tensors.
    #[error("{what} holds {tensors} tensor(s), but {splits} split rule(s) were given; give one per tensor")]
    SplitCount { what: String, tensors: usize, splits: usize },
    /// The dimension to cut does not exist.
    #[error(
        "tensor {tensor} of {what} has rank {rank} and cannot be cut along dimension {dim}; \
         name an existing one or `Split::Replicate`"
    )]
    NoSuchDim { what: String, tensor: usize, rank: usize, dim: usize },
    /// Tensors disagree on the number of samples.
    #[error(
        "tensor {tensor} of {what} has {got} samples along the dimension to cut, others have {expected}; {}",
        agree(*.got)
    )]
    SampleCount { what: String, tensor: usize, got: usize, expected: usize },
    /// Split rules were given for something that the batch does not hold.
    #[error("split rules were given for {what}, which the batch does not hold; check its name, or add it")]
    SplitOfNothing { what: String },
    /// Nothing can be cut.
    #[error("the batch has no tensor to cut along a dimension, so it has no samples; give at least one a `Split::Dim`")]
    NothingToCut,
    /// A batch of zero samples.
    #[error("the batch has no samples; give at least one")]
    Empty,
    /// An extra that a stage reads is not in the batch.
    #[error("stage {stage} reads the extra `{name}`, which the batch does not hold; add it with `Batch::extra`")]
    MissingExtra { stage: usize, name: String },
    /// A method was called on a batch of given microbatches.
    #[error(
        "`Batch::{method}` was called on a batch of given microbatches (`Batch::from_microbatches`); call it on each \
         microbatch"
    )]
    Misplaced { method: &'static str },
    /// Some given microbatches have a target, and some have none.
    #[error("{targets} of {pieces} microbatches have a target; give one to all or to none")]
    SomeTargets { targets: usize, pieces: usize },
    /// The number of dimensions to join along is not the number of tensors.
    #[error(
        "an output holds {tensors} tensor(s), but {dims} dimension(s) to join along were given; give one per tensor"
    )]
    JoinCount { tensors: usize, dims: usize },
    /// Outputs to join differ in their structure.
    #[error("the outputs of microbatches differ in kinds, element types, ranks or variants and cannot be joined")]
    Structure,
}

burn_pipeline_plan::debug_as_text!(MicrobatchError);

/// What to do if numbers of samples differ: a single row (such as a mask) may be meant for all samples.
fn agree(got: usize) -> &'static str {
    match got {
        1 => {
            "all must agree; if a single row is meant for all samples, give it `Split::Replicate` \
             (`Batch::split_extra`, `split_input`, `split_target`)"
        }
        _ => "all must agree",
    }
}

/// A payload with its split rules; `None` cuts every tensor along dimension 0.
#[derive(Clone, Debug)]
pub(super) struct Cuttable {
    pub(super) payload: Payload,
    pub(super) splits: Option<Vec<Split>>,
}

impl Cuttable {
    /// Returns the rule of a tensor; the rules must have been checked ([`Cuttable::samples`]).
    pub(super) fn rule(&self, tensor: usize) -> Split {
        self.splits.as_ref().and_then(|splits| splits.get(tensor).copied()).unwrap_or(Split::Dim(0))
    }

    /// Checks the rules and returns the number of samples, which must be `expected` if that is `Some`.
    pub(super) fn samples(&self, what: &str, mut expected: Option<usize>) -> Result<Option<usize>, MicrobatchError> {
        let (what, tensors) = (what.to_owned(), self.payload.tensors().count());
        if let Some(splits) = self.splits.as_ref().map(Vec::len).filter(|&splits| splits != tensors) {
            return Err(MicrobatchError::SplitCount { what, tensors, splits });
        }
        for (tensor, shape) in self.payload.tensors().map(AnyTensor::shape).enumerate() {
            let Split::Dim(dim) = self.rule(tensor) else { continue };
            let Some(&got) = shape.get(dim) else {
                return Err(MicrobatchError::NoSuchDim { what, tensor, rank: shape.num_dims(), dim });
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

    /// The samples from `start` to `end`.
    pub(super) fn piece(&self, start: usize, end: usize) -> Payload {
        self.payload.clone().map(|index, tensor| match self.rule(index) {
            Split::Replicate => tensor,
            Split::Dim(dim) => tensor.narrow(dim, start, end),
        })
    }
}
