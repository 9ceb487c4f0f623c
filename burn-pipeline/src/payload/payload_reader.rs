//! Reads a value from the front of a payload.
//!
//! Guarantees: a payload that does not hold the value being read is refused, with the part that does not fit.

use super::any_tensor::{AnyTensor, TensorKind};
use super::cut_over::CutOver;
use super::host_value::HostValue;
use super::parts::{EDGE, Payload, PayloadPart};
use super::tensor_spec::TensorSpec;
use burn::tensor::Tensor;
use burn::tensor::kind::Basic;
use std::collections::VecDeque;

/// Why a payload cannot be read as a value. Tensors count from 0.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum BoundaryError {
    /// A tensor of another kind or rank.
    #[error(
        "tensor {index} of the payload is {got} of rank {got_rank}, but {expected} of rank {expected_rank} is expected"
    )]
    Mismatch { index: usize, got: TensorKind, got_rank: usize, expected: TensorKind, expected_rank: usize },
    /// A tensor is whole where a piece is expected, or a piece where a whole one is, or cut differently.
    #[error("tensor {index} of the payload is {got}, but {expected} is expected")]
    Cut { index: usize, got: String, expected: String },
    /// The payload ended too early.
    #[error("the payload ended where {expected} was expected")]
    Missing { expected: &'static str },
    /// Parts are left over.
    #[error("the payload has {left} part(s) more than the value that is read from it")]
    LeftOver { left: usize },
    /// A part of another kind (a tensor, a plain value of one type, a tag), or an unknown variant.
    #[error("the payload does not hold {expected} where it is expected")]
    Structure { expected: &'static str },
}

burn_pipeline_plan::debug_as_text!(BoundaryError);

/// Reads a [`Payload`] from its front.
#[derive(Debug)]
pub struct PayloadReader {
    parts: VecDeque<PayloadPart>,
    /// The number of tensors that were read.
    tensors: usize,
}

impl PayloadReader {
    /// Starts at a payload's front.
    pub fn new(payload: Payload) -> Self {
        Self { parts: payload.0, tensors: 0 }
    }

    fn next(&mut self, expected: &'static str) -> Result<PayloadPart, BoundaryError> {
        self.parts.pop_front().ok_or(BoundaryError::Missing { expected })
    }

    /// Takes a tensor.
    ///
    /// # Errors
    /// Returns [`BoundaryError`] if the next part is not a tensor of that rank and kind.
    pub fn tensor<const D: usize, K: Basic + 'static>(&mut self) -> Result<Tensor<D, K>, BoundaryError> {
        if let Some(cut) = self.mark() {
            let expected = format!("a whole {} tensor of rank {D}", TensorKind::of_marker::<K>());
            return Err(self.cut_otherwise(Some(cut), expected));
        }
        self.any_tensor()?.into_tensor().map_err(|(got, got_rank)| BoundaryError::Mismatch {
            index: self.tensors - 1,
            got,
            got_rank,
            expected: TensorKind::of_marker::<K>(),
            expected_rank: D,
        })
    }

    /// Takes a tensor of any rank and kind.
    ///
    /// # Errors
    /// Returns [`BoundaryError`] if the next part is not a tensor.
    pub fn any_tensor(&mut self) -> Result<AnyTensor, BoundaryError> {
        match self.next("a tensor")? {
            PayloadPart::Tensor(tensor) => {
                self.tensors += 1;
                Ok(tensor)
            }
            PayloadPart::Host(_) | PayloadPart::Tag(_) => Err(BoundaryError::Structure { expected: "a tensor" }),
        }
    }

    /// Takes a piece of a float tensor that is cut along `axis`, and returns it with the number of pieces.
    pub(crate) fn piece<const D: usize>(&mut self, axis: usize) -> Result<(Tensor<D>, usize), BoundaryError> {
        match self.mark() {
            Some(cut) if cut.axis == axis => {
                self.parts.pop_front();
                Ok((self.tensor()?, cut.ranks))
            }
            cut => {
                let expected =
                    format!("a piece of a float tensor of rank {D} that is cut along axis {axis} over a group");
                Err(self.cut_otherwise(cut, expected))
            }
        }
    }

    /// The mark, if the next part is one.
    fn mark(&self) -> Option<CutOver> {
        match self.parts.front() {
            Some(PayloadPart::Tag(tag)) => CutOver::of(*tag),
            _ => None,
        }
    }

    /// The error of a tensor that is cut differently from what is read.
    fn cut_otherwise(&mut self, cut: Option<CutOver>, expected: String) -> BoundaryError {
        let tensor = self.parts.iter().find_map(|part| match part {
            PayloadPart::Tensor(tensor) => Some(TensorSpec::of(tensor)),
            _ => None,
        });
        match tensor {
            Some(tensor) => BoundaryError::Cut { index: self.tensors, got: tensor.described(cut), expected },
            None => BoundaryError::Missing { expected: "a tensor" },
        }
    }

    /// Takes a plain value of any type.
    ///
    /// # Errors
    /// Returns [`BoundaryError`] if the next part is not a plain value.
    pub fn host(&mut self, expected: &'static str) -> Result<HostValue, BoundaryError> {
        match self.next(expected)? {
            PayloadPart::Host(value) => Ok(value),
            PayloadPart::Tensor(_) | PayloadPart::Tag(_) => Err(BoundaryError::Structure { expected }),
        }
    }

    /// Takes all parts that were not read.
    pub fn rest(&mut self) -> Payload {
        Payload(std::mem::take(&mut self.parts))
    }

    /// The number of parts that were not read.
    pub(super) fn left(&self) -> usize {
        self.parts.len()
    }

    /// Returns true if the next part is the mark of a value that goes past the next stage.
    pub(super) fn is_at_edge(&self) -> bool {
        matches!(self.parts.front(), Some(PayloadPart::Tag(EDGE)))
    }

    /// Takes the mark before such a value.
    pub(super) fn edge(&mut self) -> Result<(), BoundaryError> {
        let expected = "a value from past the neighbouring stage";
        match self.next(expected)? {
            PayloadPart::Tag(EDGE) => Ok(()),
            _ => Err(BoundaryError::Structure { expected }),
        }
    }

    /// Takes a tag, which must be below `limit`.
    ///
    /// # Errors
    /// Returns [`BoundaryError`] if the next part is not a tag, or is too large.
    pub fn tag(&mut self, limit: usize, expected: &'static str) -> Result<usize, BoundaryError> {
        match self.next(expected)? {
            PayloadPart::Tag(tag) if tag < limit => Ok(tag),
            _ => Err(BoundaryError::Structure { expected }),
        }
    }
}
