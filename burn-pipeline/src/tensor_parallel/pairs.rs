//! Collectives with their backwards.
//!
//! Guarantees: if every member uses these functions as the states require, the gradient of a whole tensor is one
//! device's on every member, and the gradient of a piece is the piece of one device's.
//!
//! [`TensorGroup`] describes the states of tensors, and which collective runs in which function's backward.

use super::collective::{Collective, GroupOp};
use super::group::TensorGroup;
use crate::ops::{Pair, paired};
use crate::program::CapturedOp;
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;
use std::sync::Arc;

impl TensorGroup {
    /// Returns a whole tensor unchanged, for use by each member in its own way (with its piece of a weight). Its
    /// gradient is the sum over members.
    pub fn copy_to<const D: usize>(&self, whole: Tensor<D>) -> Tensor<D> {
        self.paired(whole, None, Some(Collective::AllReduce))
    }

    /// A module with replicated parameters, for use on this member's piece of an activation (such as a norm in a
    /// region where the sequence is cut). Each member computes a part of the parameters' gradients, and gets the
    /// sum over members.
    pub fn for_pieces<M: Module>(&self, module: &M) -> M {
        if self.is_alone() { module.clone() } else { module.clone().map(&mut CopyEach(self)) }
    }

    /// The sum over members of a partial tensor. Its gradient is the gradient of the sum, which all members have.
    pub fn reduce_from<const D: usize>(&self, partial: Tensor<D>) -> Tensor<D> {
        self.paired(partial, Some(Collective::AllReduce), None)
    }

    /// This member's piece of a whole tensor along an axis.
    ///
    /// # Panics
    /// Panics if the axis cannot be cut evenly.
    pub fn scatter_to<const D: usize>(&self, whole: Tensor<D>, axis: usize) -> Tensor<D> {
        self.share(whole.dims()[axis], "elements along an axis");
        self.paired(whole, Some(Collective::OwnPiece { axis }), Some(Collective::AllGather { axis }))
    }

    /// Joins all members' pieces along an axis into the whole tensor, for the same use by all members.
    pub fn gather_from<const D: usize>(&self, piece: Tensor<D>, axis: usize) -> Tensor<D> {
        self.paired(piece, Some(Collective::AllGather { axis }), Some(Collective::OwnPiece { axis }))
    }

    /// Joins all members' pieces along an axis into the whole tensor, for use by each member in its own way.
    pub fn all_gather<const D: usize>(&self, piece: Tensor<D>, axis: usize) -> Tensor<D> {
        self.paired(piece, Some(Collective::AllGather { axis }), Some(Collective::ReduceScatter { axis }))
    }

    /// This member's piece along an axis of the sum over members of a partial tensor.
    ///
    /// # Panics
    /// Panics if the axis cannot be cut evenly.
    pub fn reduce_scatter<const D: usize>(&self, partial: Tensor<D>, axis: usize) -> Tensor<D> {
        self.share(partial.dims()[axis], "elements along an axis");
        self.paired(partial, Some(Collective::ReduceScatter { axis }), Some(Collective::AllGather { axis }))
    }

    /// Gets from each member the piece with this member's index along an axis, and joins these in member order.
    /// Gradients go back the same way.
    ///
    /// # Panics
    /// Panics if the axis cannot be cut evenly.
    pub fn all_to_all<const D: usize>(&self, tensor: Tensor<D>, axis: usize) -> Tensor<D> {
        self.share(tensor.dims()[axis], "elements along an axis");
        self.paired(tensor, Some(Collective::AllToAll { axis }), Some(Collective::AllToAll { axis }))
    }

    /// The tensor of the member `root`, for use by each member in its own way. The others pass a tensor of the same
    /// shape, which is not read and has a gradient of zeros. Autodiff may track the tensor on some members only, if
    /// some weights are trained on some members only: the backward runs on all of them. If members reach it from
    /// graphs of different depths, with other collectives in between, they get an error that names both.
    ///
    /// # Panics
    /// Panics if there is no such member.
    pub fn broadcast<const D: usize>(&self, tensor: Tensor<D>, root: usize) -> Tensor<D> {
        assert!(root < self.size(), "there is no member {root} in a group of {}", self.size());
        let (forward, backward) = (Collective::Broadcast { root }, Collective::Reduce { root });
        self.tracked(tensor, Pair { forward: self.op(forward), backward: self.op(backward), always: true })
    }

    fn paired<const D: usize>(
        &self,
        tensor: Tensor<D>,
        forward: Option<Collective>,
        backward: Option<Collective>,
    ) -> Tensor<D> {
        let op = |collective: Option<Collective>| collective.and_then(|collective| self.op(collective));
        self.tracked(tensor, Pair { forward: op(forward), backward: op(backward), always: false })
    }

    pub(super) fn tracked<const D: usize>(&self, tensor: Tensor<D>, pair: Pair) -> Tensor<D> {
        if self.is_alone() { tensor } else { Tensor::from_dispatch(paired(tensor.into_dispatch(), pair)) }
    }

    fn op(&self, collective: Collective) -> Option<Arc<dyn CapturedOp>> {
        Some(Arc::new(GroupOp::new(self.clone(), collective)))
    }
}

/// Applies [`TensorGroup::copy_to`] to each parameter.
struct CopyEach<'a>(&'a TensorGroup);

impl ModuleMapper for CopyEach<'_> {
    fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let value = self.0.copy_to(parameter.val());
        let (id, _, mapper) = parameter.consume();
        Param::from_mapped_value(id, value, mapper)
    }
}
