//! The low-rank adapter (`Module::apply_lora`) of a weight that is cut.
//!
//! Guarantees: each member's effective weight is its piece of the whole one, `base + scale * (a @ b)`, and both factors
//! get one device's gradients, up to the rounding of sums that are added in parts.
//!
//! 1. The factor with the axis of the cut is cut with the weight: rows of `a`, or columns of `b`.
//! 2. The other factor is whole on all members, and each has one term of its gradient. Their sum is what the factor
//!    gets ([`TensorGroup::copy_to`]).
//! 3. The adapter is part of the parameter, as Burn's is: layers read the effective weight as they read any.

use super::group::TensorGroup;
use burn::module::{LoraAdapter, Module, Param, Reparameterization, Reparameterizer};
use burn::tensor::Tensor;

/// Burn's [`LoraAdapter`], with one factor cut. Its parameters have the ordinary adapter's names.
#[derive(Module, Debug)]
pub(super) struct CutAdapter {
    a: Param<Tensor<2>>,
    b: Param<Tensor<2>>,
    scale: f64,
    /// True if columns are cut.
    columns: bool,
    #[module(skip)]
    group: TensorGroup,
}

impl CutAdapter {
    /// Cuts the adapter of a weight that is cut along this axis.
    pub(super) fn new(group: &TensorGroup, adapter: LoraAdapter, axis: usize) -> Self {
        let LoraAdapter { a, b, scale } = adapter;
        let columns = axis == 1;
        let (a, b) = if columns { (a, group.cut(b, 1)) } else { (group.cut(a, 0), b) };
        Self { a, b, scale, columns, group: group.clone() }
    }

    /// The cut weight with this adapter.
    pub(super) fn added_to<const D: usize>(self, base: Param<Tensor<D>>) -> Param<Tensor<D>> {
        base.apply_reparameterization(Add(Some(self)))
    }
}

/// Adds an adapter to the one parameter that it visits.
struct Add(Option<CutAdapter>);

impl Reparameterizer for Add {
    type Reparam = CutAdapter;

    fn reparameterize<const D: usize>(
        &mut self,
        _: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<CutAdapter>) {
        (param, self.0.take())
    }
}

impl Reparameterization for CutAdapter {
    const NAME: &'static str = LoraAdapter::NAME;

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let (a, b) = match self.columns {
            true => (self.group.copy_to(self.a.val()), self.b.val()),
            false => (self.a.val(), self.group.copy_to(self.b.val())),
        };
        // As Burn's adapter computes it.
        let change = a.matmul(b).mul_scalar(self.scale).reshape(base.shape());
        let is_other_float = base.dtype().is_float() && base.dtype() != change.dtype();
        (if is_other_float { base.cast(change.dtype()) } else { base }) + change
    }
}
