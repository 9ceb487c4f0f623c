//! Which parameters of a rank are pieces of larger ones.
//!
//! Guarantees: a parameter is a piece if and only if a layer cut it from a whole one through [`TensorGroup::cut`].
//! All members cut the values of member 0, so the pieces make one tensor whatever values the members' own layers
//! have. Any group size therefore starts from one device's numbers. The cost: one whole layer at a time is in memory
//! while a stage is built.

use super::adapter::CutAdapter;
use super::group::{CutAlong, TensorGroup};
use crate::payload::AnyTensor;
use crate::stage::{NamedParameter, Names, Standing, named_weights};
use burn::backend::DispatchAutodiffContext;
use burn::module::{LoraAdapter, Param, ParamId, Reparameterization};
use burn::tensor::{DType, Shape, Tensor};
use std::collections::HashSet;

impl TensorGroup {
    /// Cuts this member's piece of a parameter, for custom layers: its share along `axis` of member 0's values. All
    /// members call it while a stage is built, for the same parameters in the same order. The layer's forward must
    /// sum over members, with [`TensorGroup::copy_to`] and [`TensorGroup::reduce_from`]. A low-rank adapter
    /// (`Module::apply_lora`) is cut with its weight; add it before the cut.
    ///
    /// # Panics
    /// Panics if the axis cannot be cut evenly over the members, the parameter is quantised, it has an adapter and the
    /// group is one of data-parallel replicas, or it has another reparameterization than Burn's adapter.
    pub fn cut<const D: usize>(&self, whole: Param<Tensor<D>>, axis: usize) -> Param<Tensor<D>> {
        if self.is_alone() {
            return whole;
        }
        self.share(whole.shape()[axis], "rows or columns of a weight");
        let Some(adapter) = whole.adapter().cloned() else { return self.cut_part(whole, axis) };
        self.expect_members("a weight with a low-rank adapter");
        let base = self.cut_base(whole, axis);
        CutAdapter::new(self, adapter, axis).added_to(base)
    }

    /// As [`TensorGroup::cut`], but the first members may get one row or column more than the others
    /// ([`TensorGroup::part`]).
    ///
    /// # Panics
    /// Panics if the parameter has a reparameterization, such as a low-rank adapter, or is quantised.
    pub(crate) fn cut_part<const D: usize>(&self, whole: Param<Tensor<D>>, axis: usize) -> Param<Tensor<D>> {
        if self.is_alone() {
            return whole;
        }
        let parameters = named_weights(&whole, &Names::default()).len();
        assert!(
            parameters == 1,
            "a weight with a low-rank adapter, or another reparameterization, cannot be cut here: merge it into the \
             weight first (`Module::materialize`)"
        );
        self.cut_base(whole, axis)
    }

    /// Cuts the stored value of a parameter, without its reparameterization.
    fn cut_base<const D: usize>(&self, whole: Param<Tensor<D>>, axis: usize) -> Param<Tensor<D>> {
        assert!(
            !matches!(whole.base().dtype(), DType::QFloat(_)),
            "a quantised weight cannot be cut: cut it first, or dequantise it (`Tensor::dequantize`)"
        );
        let length = whole.shape()[axis];
        let share = self.part(length);
        let standing = Standing::of(&whole);
        let (id, tensor, mapper) = whole.consume();
        let tensor = AnyTensor::new(tensor);
        let graph = tensor.as_dispatch().autodiff;
        let piece = self.first_values(tensor.inner()).narrow(axis, share.start, share.end).compact();
        let piece = match graph {
            DispatchAutodiffContext::Enabled(strategy) => standing.lifted(piece, strategy),
            DispatchAutodiffContext::Disabled => piece,
        };
        self.cuts.lock().insert(id, CutAlong { axis, whole: length });
        Param::from_mapped_value(id, Tensor::<D>::from_dispatch(piece.into_dispatch()), mapper)
    }

    /// Joins the members' pieces of a parameter, or of a tensor cut like it (its gradient), which may have different
    /// lengths; returns any other tensor unchanged. All members call it.
    ///
    /// # Panics
    /// Unwinds with a [`LinkError`](crate::link::LinkError) if another rank failed.
    pub(crate) fn whole(&self, parameter: ParamId, own: AnyTensor) -> AnyTensor {
        let Some(cut) = self.cut_of(parameter) else { return own };
        let dims = self.whole_shape(parameter, own.shape()).to_vec();
        let what = format!("joining pieces of {dims:?} {:?} along axis {}", own.dtype(), cut.axis);
        self.send_each(&what, |_| Some(own.clone()));
        let pieces = self.in_order(own.clone(), self.receive_each(&what, 0..self.size(), |_| own.clone()));
        AnyTensor::cat(pieces, cut.axis).unwrap_or(own)
    }

    /// The shape of the whole parameter, given the shape of the members' pieces.
    pub(crate) fn whole_shape(&self, parameter: ParamId, own: Shape) -> Shape {
        let Some(cut) = self.cut_of(parameter) else { return own };
        let mut dims = own.to_vec();
        dims[cut.axis] = cut.whole;
        Shape::from(dims)
    }

    /// Cuts this member's piece of a whole parameter, or of a tensor like it, into its own storage; returns an
    /// uncut one unchanged.
    pub(crate) fn own_piece(&self, parameter: ParamId, whole: AnyTensor) -> AnyTensor {
        let Some(cut) = self.cut_of(parameter) else { return whole };
        let own = self.part(cut.whole);
        whole.narrow(cut.axis, own.start, own.end).compact()
    }

    /// The name of a cut parameter whose low-rank adapter is not cut with it: one that was added after the cut.
    pub(crate) fn adapted_after_cut(&self, held: &[NamedParameter]) -> Option<String> {
        let is_cut = |path: &str| held.iter().any(|other| other.path == path && self.axis_of(other.id).is_some());
        let adapted = |other: &NamedParameter| {
            let [a, b] = ["a", "b"].map(|factor| format!("{}.{}.{factor}", other.path, LoraAdapter::NAME));
            held.iter().any(|factor| factor.path == a) && !is_cut(&a) && !is_cut(&b)
        };
        let mut cut = held.iter().filter(|parameter| self.axis_of(parameter.id).is_some());
        cut.find(|parameter| adapted(parameter)).map(|parameter| parameter.name.clone())
    }

    /// A parameter that was cut and is not in `held`.
    pub(crate) fn cut_beside(&self, held: &HashSet<ParamId>) -> Option<ParamId> {
        let cuts = self.cuts.lock();
        cuts.keys().copied().find(|id| !held.contains(id))
    }

    /// The axis along which a parameter was cut; `None` if it is whole on every member.
    pub(crate) fn axis_of(&self, parameter: ParamId) -> Option<usize> {
        self.cut_of(parameter).map(|cut| cut.axis)
    }

    fn cut_of(&self, parameter: ParamId) -> Option<CutAlong> {
        self.cuts.lock().get(&parameter).copied()
    }
}
