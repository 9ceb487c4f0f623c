//! Dropout in a tensor-parallel stage.

use crate::stage::random;
use crate::tensor_parallel::TensorGroup;
use burn::module::Module;
use burn::nn::Dropout;
use burn::tensor::{Distribution, Shape, Tensor};

/// Burn's dropout for a stage of a tensor-parallel group: each member drops of its tensors what one device drops of
/// the whole ones.
///
/// All members draw the whole mask from the seed of the microbatch and the stage
/// ([`Builder::seed`](crate::train::Builder::seed), which is required if there are several members). A member that
/// has a piece of the tensor keeps that piece of the mask. So all members must run the same layers in the same order,
/// and a mask costs each of them the time and, for a moment, the memory of the whole mask.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{DropoutConfig, LinearConfig};
/// use burn::tensor::{Tensor, activation::gelu};
/// use burn_pipeline::StageContext;
/// use burn_pipeline::nn::{ColumnLinear, GroupDropout, RowLinear};
///
/// #[derive(Module, Debug)]
/// struct FeedForward {
///     up: ColumnLinear,
///     down: RowLinear,
///     dropout: GroupDropout,
/// }
///
/// impl FeedForward {
///     fn new(at: &StageContext, d: usize) -> Self {
///         Self {
///             up: ColumnLinear::cut(LinearConfig::new(d, 4 * d).init(&at.device), &at.group),
///             down: RowLinear::cut(LinearConfig::new(4 * d, d).init(&at.device), &at.group),
///             dropout: GroupDropout::cut(DropoutConfig::new(0.1).init(), &at.group),
///         }
///     }
///
///     fn forward(&self, x: Tensor<3>) -> Tensor<3> {
/// // Hidden features are cut along axis 2; the result is whole.
///         let hidden = self.dropout.forward_cut(gelu(self.up.forward(x.clone())), 2);
///         x + self.dropout.forward(self.down.forward(hidden))
///     }
/// }
/// ```
#[derive(Module, Debug)]
pub struct GroupDropout {
    dropout: Dropout,
    #[module(skip)]
    group: TensorGroup,
}

impl GroupDropout {
    /// Makes it from the ordinary layer.
    ///
    /// # Panics
    /// Panics if `group` is one of data-parallel replicas.
    pub fn cut(dropout: Dropout, group: &TensorGroup) -> Self {
        group.expect_members("dropout");
        Self { dropout, group: group.clone() }
    }

    /// Drops elements of a tensor that all members have whole.
    pub fn forward<const D: usize>(&self, whole: Tensor<D>) -> Tensor<D> {
        self.dropped(whole, None)
    }

    /// Drops elements of this rank's piece of a tensor that is cut evenly along an axis.
    pub fn forward_cut<const D: usize>(&self, piece: Tensor<D>, axis: usize) -> Tensor<D> {
        self.dropped(piece, Some(axis).filter(|_| self.group.size() > 1))
    }

    /// As Burn's layer computes it.
    fn dropped<const D: usize>(&self, x: Tensor<D>, cut: Option<usize>) -> Tensor<D> {
        let Dropout { prob, training } = &self.dropout;
        let device = x.device();
        if !training.is_enabled() || !device.is_autodiff() || *prob == 0.0 {
            return x;
        }
        let (keep, mut whole) = (1.0 - prob, x.dims());
        if let Some(axis) = cut {
            whole[axis] *= self.group.size();
        }
        let mask = random::<D>(Shape::from(whole), x.dtype(), Distribution::Bernoulli(keep), &device);
        let mask = match cut {
            None => mask,
            Some(axis) => {
                let own = self.group.part(whole[axis]);
                mask.narrow(axis, own.start, own.len())
            }
        };
        x * mask * (1.0 / keep)
    }
}
