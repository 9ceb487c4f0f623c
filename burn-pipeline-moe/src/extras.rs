//! Side data of a batch: document ids, masks, tables.
//!
//! Guarantees: what belongs to samples is cut with them, what does not is given whole to every microbatch, and a stage
//! reads the piece of the microbatch that it runs, in whatever order microbatches come: pieces are looked up by
//! microbatch, there is no counter to fall out of step.
//!
//! 1. [`document_ids`] tells documents of a packed sequence apart by their first token.
//! 2. [`BatchExtras`] gathers named tensors. One whose dimension 0 is the batch's number of samples is cut along it,
//!    any other is replicated (tables, numbers of one element). Where sizes are equal by chance,
//!    [`BatchExtras::whole`] says so.
//! 3. [`BatchExtras::attach`] makes them extras of the batch, which stages name.
//! 4. A stage that reads more or less of them, as its layers need, takes them as [`StageExtras`].

use burn::tensor::kind::Basic;
use burn::tensor::{Int, Tensor};
use burn_pipeline::stage::{AnyTensor, Batch, Boundary, BoundaryError, Payload, PayloadReader, Split, TensorKindOf};
use std::collections::VecDeque;

/// The document of each token of packed sequences `[batch, seq]`: it grows by one at every `bos` token, which is its
/// document's first.
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

/// Named side data of a batch.
#[derive(Debug, Clone, Default)]
pub struct BatchExtras {
    entries: Vec<(String, AnyTensor, Option<Split>)>,
}

/// Why side data cannot be attached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchExtrasError {
    /// A tensor that was said to belong to samples does not.
    #[error(
        "`{name}` has {got:?} entries along its dimension 0, but the batch has {samples} samples; use `whole` for what belongs to no sample"
    )]
    Samples {
        /// The tensor's name.
        name: String,
        /// Its size along dimension 0; `None` for a rank of 0.
        got: Option<usize>,
        /// Samples of the batch.
        samples: usize,
    },
}

impl BatchExtras {
    /// No side data yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor; whether it belongs to samples is told by its first dimension.
    pub fn with(self, name: impl Into<String>, tensor: AnyTensor) -> Self {
        self.add(name, tensor, None)
    }

    /// Adds a tensor that belongs to samples, one entry of dimension 0 each.
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

    /// How each tensor is cut in a batch of so many samples.
    ///
    /// # Errors
    /// If a tensor that was said to belong to samples has another size.
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

    /// Makes the tensors extras of a batch of so many samples.
    ///
    /// # Errors
    /// As [`BatchExtras::splits`].
    pub fn attach(self, batch: Batch, samples: usize) -> Result<Batch, BatchExtrasError> {
        let splits: Vec<Split> = self.splits(samples)?.into_iter().map(|(_, split)| split).collect();
        let attach = |batch: Batch, ((name, tensor, _), split): ((String, AnyTensor, _), Split)| {
            batch.split_extra(&name, vec![split]).extra(name, tensor)
        };
        Ok(self.entries.into_iter().zip(splits).fold(batch, attach))
    }
}

/// The side data that one stage reads, in the order in which it names it; how many tensors they are is the stage's own
/// affair, so one module type can serve stages that read different things.
///
/// As the last part of `Stage::Extra` it takes all tensors that follow.
#[derive(Debug, Clone, Default)]
pub struct StageExtras(VecDeque<AnyTensor>);

/// A stage asked for other side data than it named.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StageExtrasError {
    /// Nothing is left.
    #[error("the stage reads `{name}`, but all side data that it names was read before; name it in `Stage::extras`")]
    Missing {
        /// What was asked for.
        name: String,
    },
    /// The next tensor is another.
    #[error("the side data `{name}` is a {kind} tensor of rank {rank}, and the stage takes another; check the batch")]
    Mismatch {
        /// What was asked for.
        name: String,
        /// The kind that is there.
        kind: String,
        /// The rank that is there.
        rank: usize,
    },
}

impl StageExtras {
    /// Takes the next tensor; the name is for the message.
    ///
    /// # Errors
    /// If none is left, or it is of another kind or rank.
    pub fn take<const D: usize, K: Basic + TensorKindOf>(
        &mut self,
        name: &str,
    ) -> Result<Tensor<D, K>, StageExtrasError> {
        let name = name.to_owned();
        let Some(next) = self.0.pop_front() else { return Err(StageExtrasError::Missing { name }) };
        next.into_tensor().map_err(|(kind, rank)| StageExtrasError::Mismatch { name, kind: kind.to_string(), rank })
    }
}

impl FromIterator<AnyTensor> for StageExtras {
    fn from_iter<I: IntoIterator<Item = AnyTensor>>(tensors: I) -> Self {
        Self(tensors.into_iter().collect())
    }
}

impl Boundary for StageExtras {
    fn write(self, payload: &mut Payload) {
        self.0.into_iter().for_each(|tensor| payload.push_tensor(tensor));
    }

    fn read(payload: &mut PayloadReader) -> Result<Self, BoundaryError> {
        let mut tensors = VecDeque::new();
        loop {
            match payload.any_tensor() {
                Ok(tensor) => tensors.push_back(tensor),
                Err(BoundaryError::Missing { .. }) => return Ok(Self(tensors)),
                Err(error) => return Err(error),
            }
        }
    }
}
