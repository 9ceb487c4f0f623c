//! Collectives of a group that the link runs by itself.
//!
//! Guarantees: the same shapes and values as with messages, up to the order of additions and the link's own roundings
//! of half precision; if members run different collectives, all get an error that names both, and none launches.
//!
//! 1. The link's collectives ([`Collectives`]) take flat tensors. A tensor that is cut along an axis is first
//!    stored piece by piece; a tensor that is joined along an axis arrives piece by piece, and is joined here.
//!    Along the first axis nothing moves.
//! 2. A start begins a collective, and a wait ends the oldest one: collectives end in the order in which they begin
//!    (`exchange.rs`).
//! 3. Rows of uneven numbers (`rows.rs`) and lists of collectives still travel as messages.

use super::collective::{Collective, described, piece};
use super::exchange::{header, place};
use super::group::TensorGroup;
use crate::link::{Activity, Collectives, FlatCollective, Link, LinkError, TRANSFER};
use crate::payload::AnyTensor;
use burn::tensor::Shape;

impl TensorGroup {
    /// Begins a collective.
    ///
    /// # Panics
    /// Unwinds with a [`LinkError`] if the link has ended.
    pub(super) fn begin_by_link(&self, collective: Collective, own: &AnyTensor) {
        let Some(flat) = flat(collective) else { return };
        let what = described(collective, own);
        let tensor = match collective {
            Collective::ReduceScatter { axis } | Collective::AllToAll { axis } => self.piece_by_piece(own, axis),
            _ => own.clone(),
        };
        self.over_link(|link, activity| {
            let what = place(activity, &what);
            tracing::debug!(
                target: TRANSFER, rank = link.rank(), peers = ?self.set.ranks(), kind = ?flat, what,
                bytes = tensor.bytes(), "given to a group"
            );
            self.collectives(link)?.begin(flat, what, tensor)
        });
    }

    /// Ends the oldest collective, which must be this one; `part` is this member's part of its own tensor.
    ///
    /// # Panics
    /// Unwinds with a [`LinkError`] if members ran different collectives, or another rank failed, left or did not
    /// answer.
    pub(super) fn end_by_link(&self, collective: Collective, part: AnyTensor) -> AnyTensor {
        let flat = self.over_link(|link, activity| {
            self.waits(link, activity);
            self.collectives(link)?.end(self.set.deadline())
        });
        match collective {
            Collective::AllGather { axis } | Collective::AllToAll { axis } => self.pieces_joined(flat, &part, axis),
            Collective::Reduce { root } if root != self.member() => part.zeros(part.shape()),
            _ => flat.reshape(part.shape()),
        }
    }

    pub(super) fn collectives<'a>(&self, link: &'a mut dyn Link) -> Result<&'a mut dyn Collectives, LinkError> {
        let rank = self.set.rank();
        let message = "the link has no collectives any more".to_owned();
        link.collectives().ok_or(LinkError::Closed { rank, message })
    }

    /// Records that this rank waits for another member.
    pub(super) fn waits(&self, link: &mut dyn Link, activity: Activity) {
        let other = self.set.ranks()[usize::from(self.member() == 0)];
        link.set_activity(Activity::Waiting(header(activity), other));
    }

    /// A tensor whose memory holds all members' pieces along an axis, one after the other.
    fn piece_by_piece(&self, own: &AnyTensor, axis: usize) -> AnyTensor {
        if axis == 0 {
            return own.clone();
        }
        let pieces = (0..self.size()).map(|member| piece(own, axis, member, self.size())).collect();
        AnyTensor::cat(pieces, 0).unwrap_or_else(|| own.clone())
    }

    /// Joins pieces shaped like `like`, stored one after the other, along an axis.
    fn pieces_joined(&self, flat: AnyTensor, like: &AnyTensor, axis: usize) -> AnyTensor {
        let mut shape = like.shape().to_vec();
        let each = shape[0];
        shape[0] *= self.size();
        let stacked = flat.reshape(Shape::from(shape));
        if axis == 0 {
            return stacked;
        }
        let pieces = (0..self.size()).map(|member| stacked.clone().narrow(0, member * each, (member + 1) * each));
        AnyTensor::cat(pieces.collect(), axis).unwrap_or(stacked)
    }
}

/// The link's collective; `None` if members exchange nothing.
fn flat(collective: Collective) -> Option<FlatCollective> {
    Some(match collective {
        Collective::AllReduce => FlatCollective::AllReduce,
        Collective::AllGather { .. } => FlatCollective::AllGather,
        Collective::ReduceScatter { .. } => FlatCollective::ReduceScatter,
        Collective::AllToAll { .. } => FlatCollective::AllToAll,
        Collective::Broadcast { root } => FlatCollective::Broadcast { root },
        Collective::Reduce { root } => FlatCollective::Reduce { root },
        Collective::OwnPiece { .. } => return None,
    })
}
