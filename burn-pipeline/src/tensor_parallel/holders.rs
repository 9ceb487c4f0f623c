//! The ranks over which a stage's parameters are cut: its tensor-parallel group, and its data-parallel replicas.
//!
//! Guarantees: a parameter that is cut over both was cut over the members first, so a whole is joined from the
//! replicas' pieces, then from the members'. A parameter that no layer cut is unchanged.

use super::group::TensorGroup;
use crate::payload::AnyTensor;
use burn::module::ParamId;
use burn::tensor::Shape;

/// One rank's handle of the ranks over which a stage's parameters are cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holders<'a> {
    pub(super) members: &'a TensorGroup,
    pub(super) replicas: &'a TensorGroup,
}

impl<'a> Holders<'a> {
    /// The tensor-parallel group of a stage, and its data-parallel replicas.
    pub(crate) fn new(members: &'a TensorGroup, replicas: &'a TensorGroup) -> Self {
        Self { members, replicas }
    }

    /// Returns true if this is the rank that answers for all: the first member of the first replica.
    pub(crate) fn is_first(&self) -> bool {
        self.members.member() == 0 && self.replicas.member() == 0
    }

    /// Returns true if a rank of the job is a member of this rank's replica.
    pub(crate) fn contains(&self, rank: usize) -> bool {
        self.members.contains(rank)
    }

    /// Returns true if this rank takes part when these parameters are joined: it is in the first replica, or has
    /// pieces that the first replica lacks.
    pub(crate) fn joins(&self, parameters: impl IntoIterator<Item = ParamId>) -> bool {
        self.replicas.member() == 0 || self.replicas.cuts_any(parameters)
    }

    /// Returns true if this rank has a piece of the parameter.
    pub(crate) fn is_cut(&self, parameter: ParamId) -> bool {
        self.members.axis_of(parameter).is_some() || self.replicas.axis_of(parameter).is_some()
    }

    /// The index of this rank's piece of the parameter in the tensor-parallel group; `None` if all members have the
    /// whole.
    pub(crate) fn piece_of(&self, parameter: ParamId) -> Option<usize> {
        self.members.axis_of(parameter).map(|_| self.members.member())
    }

    /// Returns true if the parameter is cut over the data-parallel replicas.
    pub(crate) fn is_cut_among_replicas(&self, parameter: ParamId) -> bool {
        self.replicas.axis_of(parameter).is_some()
    }

    /// Returns true if this rank's gradient of the parameter counts in a norm over all ranks, once it is a sum over
    /// replicas. If the stage is sharded, each replica has a piece.
    pub(crate) fn counts(&self, parameter: ParamId, sharded: bool) -> bool {
        let counts = |group: &TensorGroup| group.member() == 0 || group.axis_of(parameter).is_some();
        counts(self.members) && (sharded || counts(self.replicas))
    }

    /// Joins the pieces of a parameter, or of a tensor cut like it (its gradient), for the first replica; returns
    /// any other tensor unchanged. All members call it, and all replicas if it is cut over them; replicas other
    /// than the first get a part of the whole.
    ///
    /// # Panics
    /// Unwinds with a [`LinkError`](crate::link::LinkError) if another rank failed.
    pub(crate) fn whole(&self, parameter: ParamId, own: AnyTensor) -> AnyTensor {
        let of_replicas = self.replicas.whole(parameter, own);
        if self.replicas.member() == 0 { self.members.whole(parameter, of_replicas) } else { of_replicas }
    }

    /// Returns true if [`Holders::whole`] gives this rank the whole parameter.
    pub(crate) fn has_whole(&self, parameter: ParamId) -> bool {
        self.replicas.member() == 0 || !self.is_cut(parameter)
    }

    /// The shape of the whole parameter, given the shape of all ranks' pieces.
    pub(crate) fn whole_shape(&self, parameter: ParamId, own: Shape) -> Shape {
        self.members.whole_shape(parameter, self.replicas.whole_shape(parameter, own))
    }

    /// Cuts this rank's piece of a whole parameter, or of a tensor like it; returns an uncut one unchanged.
    pub(crate) fn own_piece(&self, parameter: ParamId, whole: AnyTensor) -> AnyTensor {
        self.replicas.own_piece(parameter, self.members.own_piece(parameter, whole))
    }
}
