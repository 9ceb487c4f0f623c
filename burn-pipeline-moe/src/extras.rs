//! What stages read in addition to hidden states: document ids, masks, tables, plain numbers and strings.
//!
//! All of them are extras of the batch ([`Batch::extra`](burn_pipeline::stage::Batch::extra)), which stages name.
//!
//! Guarantees: a tensor is cut with the samples, along its dimension 0 or as
//! [`Batch::split_extra`](burn_pipeline::stage::Batch::split_extra) says; numbers and text go to every microbatch.
//! Inputs are looked up by microbatch, so a stage reads its microbatch's piece in any order of execution. There is no
//! counter that could get out of step.
//!
//! 1. [`document_ids`] numbers the documents of a packed sequence by their first tokens.
//! 2. A stage whose layers read different extras takes them as [`StageExtras`], which holds what the stage names. So
//!    one module type can serve stages that read different extras.

use burn::tensor::{Int, Tensor};
use burn_pipeline::payload::{Boundary, BoundaryError, Payload, PayloadReader, PayloadSpec};

/// The document of each token of packed sequences `[batch, seq]`. The number grows by one at every `bos` token, which
/// starts a document.
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use burn_pipeline_moe::extras::document_ids;
///
/// let tokens = Tensor::<2, Int>::from_ints([[5, 0, 7, 0, 0, 9]], &Device::flex());
/// let found: Vec<i64> = document_ids(tokens, 0).into_data().iter::<i64>().collect();
/// assert_eq!(found, [0, 1, 1, 2, 3, 3]);
/// ```
pub fn document_ids(tokens: Tensor<2, Int>, bos: i64) -> Tensor<2, Int> {
    tokens.equal_scalar(bos).int().cumsum(1)
}

/// The extras that one stage reads, in the order in which it names them. It takes any number of extras, so one module
/// type can serve stages that read different ones.
///
/// As the last part of `Stage::Extra` it takes all remaining extras: tensors, plain numbers and strings.
#[derive(Debug, Clone, Default)]
pub struct StageExtras(Payload);

/// The error of a stage that reads an extra that it did not name, or one of another type.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum StageExtrasError {
    /// All extras have been read.
    #[error("the stage reads `{name}`, but it has read all extras that it names; name it in `Stage::extras`")]
    Missing { name: String },
    /// The next extra has another type.
    #[error(
        "the extra `{name}` has a different type than the stage reads: {source}; the remaining extras are {left}; \
         check the batch"
    )]
    Mismatch { name: String, source: BoundaryError, left: PayloadSpec },
}

burn_pipeline::debug_as_text!(StageExtrasError);

impl StageExtras {
    /// Takes the next extra: a tensor, an `f64`, `i64`, `bool`, `String`, or any other type that can be an extra.
    /// `name` is used in the error.
    ///
    /// # Errors
    /// Returns [`StageExtrasError`] if none is left, or it has a different type.
    pub fn take<T: Boundary>(&mut self, name: &str) -> Result<T, StageExtrasError> {
        let name = name.to_owned();
        if self.0.parts().next().is_none() {
            return Err(StageExtrasError::Missing { name });
        }
        let left = PayloadSpec::of_payload(&self.0);
        let mut reader = PayloadReader::new(std::mem::take(&mut self.0));
        let value = T::read(&mut reader).map_err(|source| StageExtrasError::Mismatch { name, source, left });
        self.0 = reader.rest();
        value
    }
}

impl Boundary for StageExtras {
    fn write(self, payload: &mut Payload) {
        let before = std::mem::take(payload);
        *payload = Payload::from_parts(before.into_parts().chain(self.0.into_parts()));
    }

    fn read(payload: &mut PayloadReader) -> Result<Self, BoundaryError> {
        Ok(Self(payload.rest()))
    }
}
