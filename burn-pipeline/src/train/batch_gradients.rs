//! The gradients of one batch with respect to its input and to its extras, from those of its microbatches.
//!
//! Guarantees: they equal the plain loop's over the same microbatches, bit for bit, for every schedule: microbatches
//! are added in their own order, whatever order their backwards had, and the sum is scaled once.
//!
//! 1. Every stage that reads something of the batch returns its gradients for each microbatch. An extra that several
//!    stages read has the sum of theirs, from the last stage to the first, as a backward over the whole model adds
//!    them. (If a stage before the last uses it several times, that backward adds these one by one; the sum then
//!    differs by rounding.)
//! 2. Pieces that were cut along a dimension are joined along it. A tensor that every microbatch has whole gets the sum
//!    over microbatches. Where only some microbatches depend on a tensor, the others have zeros.
//! 3. The result is multiplied by the factor of the loss contract, which also takes the loss scale out. With a
//!    precision, half-precision gradients are widened to f32 before anything is added, as those of parameters are.

use crate::execute::OfBatch;
use crate::payload::{AnyTensor, Boundary, BoundaryError, Payload, PayloadPart, TensorKind};
use crate::stage::{Microbatches, Split};
use burn::tensor::Device;
use burn_pipeline_plan::plan::StageId;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// One tensor of the batch.
#[derive(Debug, Clone)]
struct Whole {
    float: bool,
    split: Split,
    device: Device,
}

#[derive(Debug, Clone)]
pub(crate) struct BatchGradients {
    /// The tensors of the input (without a name) and of each extra.
    wholes: BTreeMap<Option<String>, Vec<Whole>>,
    /// The samples of each microbatch.
    sizes: Vec<usize>,
    /// True if half-precision ones become f32.
    widens: bool,
    /// By stage and microbatch; each payload is an [`OfBatch`].
    pub(super) computed: Vec<((StageId, usize), Payload)>,
    /// The factor that turns sums of these into gradients of the report's loss.
    pub(super) scale: f64,
}

impl BatchGradients {
    /// No gradients yet, of this batch.
    pub(super) fn new(batch: &Microbatches, widens: bool) -> Self {
        let names = std::iter::once(None).chain(batch.extras().cloned().map(Some));
        let whole = |(tensor, split): (&AnyTensor, Split)| {
            let float = tensor.kind() == TensorKind::Float;
            Whole { float, split, device: tensor.device().inner() }
        };
        let wholes = |name: &Option<String>| batch.ruled(name.as_deref()).into_iter().map(whole).collect();
        let wholes = names.map(|name| (name.clone(), wholes(&name))).collect();
        let sizes = (0..batch.len()).map(|microbatch| batch.size(microbatch)).collect();
        Self { wholes, sizes, widens, computed: Vec::new(), scale: 1.0 }
    }

    /// The gradients of the input, or of an extra.
    pub(super) fn read<G: Boundary>(&self, name: Option<&str>) -> Result<G, GradientError> {
        let what = name.map_or("the input".to_owned(), |name| format!("the extra `{name}`"));
        if self.computed.is_empty() {
            return Err(GradientError::Elsewhere);
        }
        let rows = self.rows(name).map_err(|source| GradientError::Type { what: what.clone(), source })?;
        let tensors = rows.values().map(Vec::len).max();
        // The first stage reads the input, even one without tensors.
        let tensors = tensors.ok_or_else(|| GradientError::NotRead { name: name.unwrap_or_default().to_owned() })?;
        let mut joined = Vec::new();
        for tensor in 0..tensors {
            let column = |microbatch| rows.get(&microbatch).and_then(|row| row.get(tensor)?.clone());
            let column: Vec<Option<AnyTensor>> = (0..self.sizes.len()).map(column).collect();
            let whole = self.whole(name, tensor);
            if whole.map_or_else(|| column.iter().any(Option::is_some), |whole| whole.float) {
                let sum = self.joined(whole.map_or(Split::Dim(0), |whole| whole.split), column);
                joined.push((tensor, sum.map_err(|Unlike| GradientError::Unlike { what: what.clone(), tensor })?));
            }
        }
        typed(joined, what)
    }

    /// A tensor of the batch; `None` if this process's batch does not hold it.
    fn whole(&self, name: Option<&str>, tensor: usize) -> Option<&Whole> {
        self.wholes.get(&name.map(str::to_owned))?.get(tensor)
    }

    /// The gradients of each microbatch, summed over the stages.
    fn rows(&self, name: Option<&str>) -> Result<BTreeMap<usize, Vec<Option<AnyTensor>>>, BoundaryError> {
        let mut rows: BTreeMap<usize, Vec<Option<AnyTensor>>> = BTreeMap::new();
        let mut computed: Vec<_> = self.computed.iter().collect();
        computed.sort_by_key(|((stage, _), _)| Reverse(stage.index()));
        for ((_, microbatch), payload) in computed {
            for (of, gradients) in OfBatch::from_payload(payload.clone())? {
                if of.as_deref() != name {
                    continue;
                }
                let mut row = rows.remove(microbatch).unwrap_or_default().into_iter();
                let own = gradients.into_iter().enumerate();
                let own = own.map(|(tensor, own)| own.map(|own| self.summand(name, tensor, own)));
                let sum = own.map(|own| row.next().flatten().into_iter().chain(own).reduce(AnyTensor::plus));
                let sum = sum.collect();
                rows.insert(*microbatch, sum);
            }
        }
        Ok(rows)
    }

    /// A gradient in the type of its sum, on the device of its tensor.
    fn summand(&self, name: Option<&str>, tensor: usize, gradient: AnyTensor) -> AnyTensor {
        let gradient = match self.whole(name, tensor) {
            Some(whole) => gradient.to_device(&whole.device),
            None => gradient,
        };
        if self.widens { gradient.widened() } else { gradient }
    }

    /// The gradient of a tensor from those of microbatches; `None` if none has one.
    fn joined(&self, split: Split, column: Vec<Option<AnyTensor>>) -> Result<Option<AnyTensor>, Unlike> {
        let Some(like) = column.iter().flatten().next().cloned() else { return Ok(None) };
        let dim = if let Split::Dim(dim) = split { Some(dim) } else { None };
        let filled = |(piece, &size): (Option<AnyTensor>, &usize)| match (piece, dim) {
            (None, Some(dim)) => {
                let mut shape = like.shape();
                shape[dim] = size;
                Some(like.zeros(shape))
            }
            (piece, _) => piece,
        };
        let pieces: Vec<AnyTensor> = column.into_iter().zip(&self.sizes).filter_map(filled).collect();
        if !pieces.iter().all(|piece| piece.joins(&like, dim)) {
            return Err(Unlike);
        }
        let whole = match dim {
            Some(dim) => AnyTensor::cat(pieces, dim),
            None => pieces.into_iter().reduce(AnyTensor::plus),
        };
        Ok(whole.map(|whole| self.scaled(whole)))
    }

    fn scaled(&self, sum: AnyTensor) -> AnyTensor {
        if self.scale == 1.0 { sum } else { sum.scale(self.scale) }
    }
}

/// Why a report has no such gradient of its batch. Tensors count from 0.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum GradientError {
    /// They were not requested.
    #[error("gradients of the batch are not computed; build the pipeline with `Builder::input_gradients(true)`")]
    Off,
    /// This process does not get them.
    #[error(
        "gradients of the batch are sent only to processes with a copy of the first stage, and this one has none; read \
         the report of one that has"
    )]
    Elsewhere,
    /// No stage reads the extra.
    #[error("no stage reads the extra `{name}`, so it has no gradient; check the name (`Stage::extras`)")]
    NotRead { name: String },
    /// No tensor can have a gradient.
    #[error("{what} holds no float tensor, and integers have no gradient; give the model floats, such as embeddings")]
    Integers { what: String },
    /// The loss does not depend on a tensor.
    #[error(
        "the loss does not depend on tensor {tensor} of {what}, so it has no gradient; if that may be so, read an \
         `Option`"
    )]
    Unused { what: String, tensor: usize },
    /// Microbatches have different shapes.
    #[error(
        "the gradients of tensor {tensor} of {what} differ between microbatches in more than their number of samples, \
         and cannot be joined; give each shape a batch of its own"
    )]
    Unlike { what: String, tensor: usize },
    /// They are of another type.
    #[error("the gradients of {what} are not of the type that was asked for: {source}")]
    Type { what: String, source: BoundaryError },
}

burn_pipeline_plan::debug_as_text!(GradientError);

/// Gradients of microbatches that cannot be joined.
struct Unlike;

/// The gradients of float tensors as a value: plain, or as options.
fn typed<G: Boundary>(joined: Vec<(usize, Option<AnyTensor>)>, what: String) -> Result<G, GradientError> {
    if joined.is_empty() {
        return Err(GradientError::Integers { what });
    }
    let unused = joined.iter().find(|(_, gradient)| gradient.is_none()).map(|(tensor, _)| *tensor);
    let mut optional = Payload::default();
    joined.iter().for_each(|(_, gradient)| gradient.clone().write(&mut optional));
    let plain = joined.into_iter().filter_map(|(_, gradient)| gradient.map(PayloadPart::Tensor));
    let plain = match unused {
        None => G::from_payload(Payload::from_parts(plain)),
        Some(_) => Err(BoundaryError::Missing { expected: "a gradient" }),
    };
    plain.or_else(|source| {
        G::from_payload(optional).map_err(|_| match unused {
            Some(tensor) => GradientError::Unused { what, tensor },
            None => GradientError::Type { what, source },
        })
    })
}
