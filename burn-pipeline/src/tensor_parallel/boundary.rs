//! A cut activation that crosses a stage boundary: each member sends its piece to the member with its index in the
//! next stage's group or, if the groups differ in size, the parts that that group's members need (`execute/recut`).
//!
//! Guarantees: a piece is only accepted as a piece of a tensor that is cut along the same axis over as many ranks
//! as the stage's group has; errors name the shapes of piece and whole.

use super::group::TensorGroup;
use crate::payload::{Boundary, BoundaryError, CutOver, Payload, PayloadReader};
use burn::tensor::Tensor;

/// A tensor of rank `D` that is cut along `AXIS` over a tensor-parallel group, in a stage's input or output or in a
/// [`Skip`](crate::payload::Skip). In a group of `n` ranks, each rank has one of `n` equal pieces, and sends only
/// that. A next stage with a group of another size gets the same tensor in its own number of pieces. Gradients go
/// back in pieces too.
///
/// A group of one rank cuts nothing, so one stage type serves groups of any size. The input from the batch is a
/// whole `Tensor`, not a `Cut`. If a stage type may be the first stage, its input is an enum of both
/// (`boundary!(enum Signal { Whole(x), Piece(cut) })`), and [`TensorGroup::scatter_to`] cuts the whole one.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_pipeline::tensor_parallel::{Cut, TensorGroup};
///
/// // In a stage's forward, from hidden states [batch, seq, width] that are cut along the sequence.
/// fn forward(input: Cut<3, 1>, group: &TensorGroup) -> Cut<3, 1> {
///     let piece = input.piece(group);
///     Cut::new(piece * 2, group)
/// }
/// # let alone = TensorGroup::alone();
/// # let x = Tensor::<3>::ones([2, 4, 8], &Device::flex());
/// # assert_eq!(forward(Cut::new(x, &alone), &alone).piece(&alone).dims(), [2, 4, 8]);
/// ```
#[derive(Clone, Debug)]
pub struct Cut<const D: usize, const AXIS: usize> {
    piece: Tensor<D>,
    ranks: usize,
}

impl<const D: usize, const AXIS: usize> Cut<D, AXIS> {
    /// Makes it from this rank's piece.
    pub fn new(piece: Tensor<D>, group: &TensorGroup) -> Self {
        const { assert!(AXIS < D, "a tensor has no such axis") };
        Self { piece, ranks: group.size() }
    }

    /// The piece, for a stage of this group.
    ///
    /// # Panics
    /// Panics if it is cut over another number of ranks than the group has.
    pub fn piece(self, group: &TensorGroup) -> Tensor<D> {
        let (Self { piece, ranks }, size) = (self, group.size());
        if ranks != size {
            let (of_piece, mut of_whole) = (piece.dims(), piece.dims());
            of_whole[AXIS] *= ranks;
            panic!(
                "the piece {of_piece:?} of {of_whole:?} is cut along axis {AXIS} over {ranks} rank(s), but this \
                 stage's group has {size}; make pieces with the group of the stage that passes them on (`Cut::new`)"
            );
        }
        piece
    }
}

impl<const D: usize, const AXIS: usize> Boundary for Cut<D, AXIS> {
    fn write(self, payload: &mut Payload) {
        payload.push_tag(CutOver { axis: AXIS, ranks: self.ranks }.tag());
        self.piece.write(payload);
    }

    fn read(payload: &mut PayloadReader) -> Result<Self, BoundaryError> {
        let (piece, ranks) = payload.piece(AXIS)?;
        Ok(Self { piece, ranks })
    }
}
