//! What stages read in addition to hidden states: document ids, masks, tables, plain numbers and strings.
//!
//! Guarantees: tensors with one entry per sample are cut with the samples; others go whole to every microbatch. Inputs
//! are looked up by microbatch, so a stage reads its microbatch's piece in any order of execution. There is no counter
//! that could get out of step.
//!
//! 1. [`document_ids`] numbers the documents of a packed sequence by their first tokens.
//! 2. [`BatchExtras`] collects named tensors. A tensor whose dimension 0 is the batch's number of samples is cut along
//!    it; any other (a table, a single number) is replicated. [`BatchExtras::whole`] replicates a tensor whose size
//!    equals the number of samples by chance.
//! 3. [`BatchExtras::attach`] makes them extras of the batch, which stages name.
//! 4. A stage whose layers read different extras takes them as [`StageExtras`], which holds what the stage names. So
//!    one module type can serve stages that read different extras.
//!
//! Numbers and text need no rule: add them with [`Batch::extra`], and every microbatch gets them.

use burn::tensor::{Int, Tensor};
use burn_pipeline::payload::{AnyTensor, Boundary, BoundaryError, Payload, PayloadReader, PayloadSpec};
use burn_pipeline::stage::{Batch, Split};

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

/// Named extras of a batch.
#[derive(Debug, Clone, Default)]
pub struct BatchExtras {
    entries: Vec<(String, AnyTensor, Option<Split>)>,
}

/// Why extras cannot be attached.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum BatchExtrasError {
    /// A tensor that was added with [`BatchExtras::by_sample`] does not have one entry per sample.
    #[error(
        "`{name}` has {got:?} entries along its dimension 0, but the batch has {samples} samples; use `whole` for a \
         tensor without one entry per sample"
    )]
    Samples { name: String, got: Option<usize>, samples: usize },
}

burn_pipeline::debug_as_text!(BatchExtrasError);

impl BatchExtras {
    /// No extras.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor, which is cut by samples if its dimension 0 equals the number of samples.
    pub fn with(self, name: impl Into<String>, tensor: AnyTensor) -> Self {
        self.add(name, tensor, None)
    }

    /// Adds a tensor with one entry of dimension 0 per sample.
    pub fn by_sample(self, name: impl Into<String>, tensor: AnyTensor) -> Self {
        self.add(name, tensor, Some(Split::Dim(0)))
    }

    /// Adds a tensor that every microbatch gets whole, whatever its size.
    pub fn whole(self, name: impl Into<String>, tensor: AnyTensor) -> Self {
        self.add(name, tensor, Some(Split::Replicate))
    }

    fn add(mut self, name: impl Into<String>, tensor: AnyTensor, split: Option<Split>) -> Self {
        self.entries.push((name.into(), tensor, split));
        self
    }

    /// How each tensor is cut in a batch of `samples` samples.
    ///
    /// # Errors
    /// Returns [`BatchExtrasError`] if a tensor that was added with [`BatchExtras::by_sample`] has a different size.
    pub fn splits(&self, samples: usize) -> Result<Vec<(&str, Split)>, BatchExtrasError> {
        let split = |(name, tensor, asked): &'_ (String, AnyTensor, Option<Split>)| {
            let got = tensor.shape().first().copied();
            let belongs = got == Some(samples) && (samples > 1 || tensor.rank() > 1);
            match asked {
                Some(Split::Dim(_)) if got != Some(samples) => {
                    Err(BatchExtrasError::Samples { name: name.clone(), got, samples })
                }
                Some(split) => Ok(*split),
                None => Ok(if belongs { Split::Dim(0) } else { Split::Replicate }),
            }
        };
        self.entries.iter().map(|entry| Ok((entry.0.as_str(), split(entry)?))).collect()
    }

    /// Makes the tensors extras of a batch of `samples` samples.
    ///
    /// # Errors
    /// Same as [`BatchExtras::splits`].
    pub fn attach(self, batch: Batch, samples: usize) -> Result<Batch, BatchExtrasError> {
        let splits: Vec<Split> = self.splits(samples)?.into_iter().map(|(_, split)| split).collect();
        let attach = |batch: Batch, ((name, tensor, _), split): ((String, AnyTensor, _), Split)| {
            batch.split_extra(&name, vec![split]).extra(name, tensor)
        };
        Ok(self.entries.into_iter().zip(splits).fold(batch, attach))
    }
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
