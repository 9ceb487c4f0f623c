//! The loss contract: what the loss of a microbatch means for the whole batch. See [`Reduction`].
//!
//! Each backward is seeded with the microbatch's number of samples divided by the first microbatch's (1 if all have
//! the same size). The accumulated gradients are scaled once, after the last backward, so even microbatches need no
//! scaling of their own.

use crate::payload::{AnyTensor, Boundary, BoundaryError, Payload, PayloadReader};
use burn::backend::{Dispatch, ops::FloatTensorOps};
use burn::tensor::{Device, Shape, Tensor};

/// The name of an extra that the runtime provides: a `Tensor<1>` of one element, the gradient that seeds the backward
/// of the microbatch's loss.
///
/// A stage that names it among its extras can add gradients of its own that count as the loss's do: anything seeded
/// with this number is cut, accumulated and scaled like the loss of the same microbatch. It is 1 for
/// [`Reduction::Sum`] and [`Reduction::Weighted`]; for [`Reduction::Mean`] it is the microbatch's number of samples
/// relative to the first one's. With a loss scale ([`LossScale`](crate::stage::LossScale)) it is that many times as
/// large, as all gradients are. It is not part of the batch.
pub const LOSS_SEED: &str = "burn-pipeline/loss-seed";

/// The value of [`LOSS_SEED`].
pub(crate) fn loss_seed(seed: f64, device: &Device) -> AnyTensor {
    AnyTensor::new(Tensor::<1>::full([1], seed, &device.clone().inner()))
}

/// How the loss function reduces over a microbatch, which decides what the loss of the whole batch is.
///
/// For every schedule, cut and accumulation, loss and gradients equal those of one loss over the whole batch (or over
/// all batches accumulated before a step):
///
/// | reduction | loss of microbatch `i` | loss of the batch |
/// |---|---|---|
/// | `Mean` | the mean over its `n_i` samples | sum of `n_i * loss_i`, over sum of `n_i` |
/// | `Sum` | a sum | sum of `loss_i` |
/// | `Weighted` | a sum with its weight `w_i`, such as a number of tokens | sum of `loss_i`, over sum of `w_i` |
///
/// `Mean` counts samples; the runtime cannot see whether the loss function counts something else. A mean over
/// something else (a cross-entropy with class weights, or one that leaves out padding) divides by a different number
/// in each microbatch, so the mean of these means is not the mean over the batch. In that case return the sum and its
/// divisor ([`Loss::weighted`]), and choose `Weighted`:
///
/// ```
/// use burn::tensor::{Int, Tensor, activation::log_softmax};
/// use burn_pipeline::stage::Loss;
///
/// /// Cross-entropy of scores `[samples, classes]` with a weight for each class, over the whole batch.
/// fn loss(scores: Tensor<2>, wanted: Tensor<1, Int>, class_weights: Tensor<1>) -> Loss {
///     let [samples, _] = scores.dims();
///     let weights = class_weights.select(0, wanted.clone());
///     let right = log_softmax(scores, 1).gather(1, wanted.reshape([samples, 1])).reshape([samples]);
///     Loss::weighted((right * weights.clone()).sum().neg(), weights.sum())
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reduction {
    /// The mean over samples, and over nothing else.
    #[default]
    Mean,
    /// A sum.
    Sum,
    /// A sum with its weight. The other two reductions refuse a weight.
    Weighted,
}

/// The weight of a microbatch's loss, known on the host or computed on the device.
#[derive(Clone, Debug)]
pub enum Weight {
    /// A number.
    Host(f64),
    /// A tensor of one element, read once the step is over.
    Device(AnyTensor),
}

impl From<f64> for Weight {
    fn from(weight: f64) -> Self {
        Weight::Host(weight)
    }
}

impl<K: burn::tensor::kind::Basic> From<Tensor<1, K>> for Weight {
    fn from(weight: Tensor<1, K>) -> Self {
        Weight::Device(AnyTensor::new(weight))
    }
}

impl Weight {
    /// Returns the number, read from the device if it was computed there.
    pub(crate) fn read(&self) -> Result<f64, String> {
        match self {
            Weight::Host(weight) => Ok(*weight),
            Weight::Device(tensor) => first(tensor),
        }
    }
}

/// The first element of a tensor.
fn first(tensor: &AnyTensor) -> Result<f64, String> {
    tensor
        .to_data()?
        .iter::<f64>()
        .next()
        .ok_or_else(|| "the loss or its weight has no element; give a tensor of one element".to_owned())
}

/// What a user's loss function returns: a `Tensor<1>`, alone or with a weight.
#[derive(Clone, Debug)]
pub struct Loss(pub(crate) LossPart);

impl Loss {
    /// A sum over the microbatch with its weight (for [`Reduction::Weighted`]).
    pub fn weighted(sum: Tensor<1>, weight: impl Into<Weight>) -> Self {
        Self(LossPart { weight: Some(weight.into()), ..Self::from(sum).0 })
    }

    /// Adds numbers of the microbatch that every rank receives once the step is over (auxiliary losses, counts). They
    /// are read together with the losses and take no part in the backward.
    pub fn observing(self, numbers: Tensor<1>) -> Self {
        Self(LossPart { observed: Some(AnyTensor::new(numbers)), ..self.0 })
    }
}

impl From<Tensor<1>> for Loss {
    fn from(value: Tensor<1>) -> Self {
        Self(LossPart { value: AnyTensor::new(value), weight: None, observed: None, output: None })
    }
}

/// One microbatch's loss. The stage's function gives it under autodiff; the executor gets it without (`inner`).
#[derive(Clone, Debug)]
pub(crate) struct LossPart {
    pub value: AnyTensor,
    /// Its weight, if the loss function gave one.
    pub weight: Option<Weight>,
    /// The observed numbers, if the loss function gave some.
    pub observed: Option<AnyTensor>,
    /// The outputs that the loss was computed from, if the caller wants them.
    pub output: Option<Payload>,
}

/// Its tensors come in this order: the loss, its weight if that was computed, the observed numbers, the outputs.
impl Boundary for LossPart {
    fn write(self, payload: &mut Payload) {
        let (host, device) = match self.weight {
            None => (None, None),
            Some(Weight::Host(weight)) => (Some(weight), None),
            Some(Weight::Device(weight)) => (None, Some(weight)),
        };
        (self.value, host, device, self.observed).write(payload);
        payload.push_tag(usize::from(self.output.is_some()));
        payload.append(self.output.unwrap_or_default());
    }

    fn read(payload: &mut PayloadReader) -> Result<Self, BoundaryError> {
        let (value, host, device, observed) = <(_, Option<f64>, Option<AnyTensor>, _)>::read(payload)?;
        let weight = host.map(Weight::Host).or(device.map(Weight::Device));
        let has_output = payload.tag(2, "whether a loss comes with outputs")? == 1;
        Ok(Self { value, weight, observed, output: has_output.then(|| payload.rest()) })
    }
}

impl LossPart {
    /// The same loss without autodiff.
    pub(crate) fn inner(self) -> Self {
        let (observed, output) = (self.observed.map(AnyTensor::inner), self.output.map(Payload::inner));
        Self { value: self.value.inner(), observed, output, ..self }
    }

    /// The tensors that are read once the step is over.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &AnyTensor> {
        let weight = match &self.weight {
            Some(Weight::Device(weight)) => Some(weight),
            _ => None,
        };
        [Some(&self.value), weight, self.observed.as_ref()].into_iter().flatten()
    }

    /// The gradient that seeds its backward, in its element type.
    pub(crate) fn seed(&self, seed: f64) -> AnyTensor {
        let (dtype, device) = (self.value.dtype().into(), self.value.device());
        let full = Dispatch::float_full(Shape::new([1]), seed.into(), device.as_dispatch(), dtype);
        AnyTensor::from_dispatch(full)
    }

    /// The observed numbers, read from the device; none if the loss function gave none.
    pub(crate) fn read_observed(&self) -> Result<Vec<f64>, String> {
        let Some(observed) = &self.observed else { return Ok(Vec::new()) };
        Ok(observed.to_data()?.iter::<f64>().collect())
    }

    pub(crate) fn read(&self) -> Result<f64, String> {
        first(&self.value)
    }
}
