//! The ranks among which a stage's parameters are cut: those that hold the stage together, and its data-parallel replicas.
//!
//! Guarantees: what is cut among both was cut among the members first, so a whole is joined of the replicas' pieces, and then of the
//! members'. What no layer cut stays as it is.

use super::group::TensorGroup;
use crate::stage::AnyTensor;
use burn::module::ParamId;
use burn::tensor::Shape;

/// The ranks among which a stage's parameters are cut, as one of them sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holders<'a> {
    pub(super) members: &'a TensorGroup,
    pub(super) replicas: &'a TensorGroup,
}

impl<'a> Holders<'a> {
    /// The ranks that hold a stage together, and its data-parallel replicas.
    pub(crate) fn new(members: &'a TensorGroup, replicas: &'a TensorGroup) -> Self {
        Self { members, replicas }
    }

    /// Is this the rank that answers for all: the first member of the first replica?
    pub(crate) fn is_first(&self) -> bool {
        self.members.member() == 0 && self.replicas.member() == 0
    }

    /// Is a rank of the job a member of this rank's replica?
    pub(crate) fn contains(&self, rank: usize) -> bool {
        self.members.contains(rank)
    }

    /// Does this rank take part where these parameters are joined: is it in the first replica, or has it pieces that this one lacks?
    pub(crate) fn joins(&self, parameters: impl IntoIterator<Item = ParamId>) -> bool {
        self.replicas.member() == 0 || self.replicas.cuts_any(parameters)
    }

    /// Has this rank a piece of the parameter?
    pub(crate) fn is_cut(&self, parameter: ParamId) -> bool {
        self.members.axis_of(parameter).is_some() || self.replicas.axis_of(parameter).is_some()
    }

    /// The place of this rank's piece of the parameter among those that hold the stage together; `None` if all of them
    /// have the whole.
    pub(crate) fn piece_of(&self, parameter: ParamId) -> Option<usize> {
        self.members.axis_of(parameter).map(|_| self.members.member())
    }

    /// Returns true if each data-parallel replica has another piece of the parameter.
    pub(crate) fn is_cut_among_replicas(&self, parameter: ParamId) -> bool {
        self.replicas.axis_of(parameter).is_some()
    }

    /// Does this rank's gradient of the parameter count in a norm over all ranks, once it is a sum over replicas? Of a stage that is
    /// sharded over its replicas each has a piece.
    pub(crate) fn counts(&self, parameter: ParamId, sharded: bool) -> bool {
        let counts = |group: &TensorGroup| group.member() == 0 || group.axis_of(parameter).is_some();
        counts(self.members) && (sharded || counts(self.replicas))
    }

    /// The whole tensor of which all ranks have the parameter's piece, or something like it (its gradient), for the first replica; any
    /// other tensor as it is. All members call it, and all replicas of which it is a piece; what others than the first get is a part of it.
    ///
    /// # Panics
    /// Unwinds with a [`LinkError`](crate::link::LinkError) if another rank failed.
    pub(crate) fn whole(&self, parameter: ParamId, own: AnyTensor) -> AnyTensor {
        let of_replicas = self.replicas.whole(parameter, own);
        if self.replicas.member() == 0 { self.members.whole(parameter, of_replicas) } else { of_replicas }
    }

    /// The shape of the whole parameter of which all ranks have a piece of this shape.
    pub(crate) fn whole_shape(&self, parameter: ParamId, own: Shape) -> Shape {
        self.members.whole_shape(parameter, self.replicas.whole_shape(parameter, own))
    }

    /// This rank's piece of a whole parameter, or of something like it; what was not cut stays whole.
    pub(crate) fn own_piece(&self, parameter: ParamId, whole: AnyTensor) -> AnyTensor {
        self.replicas.own_piece(parameter, self.members.own_piece(parameter, whole))
    }
}
