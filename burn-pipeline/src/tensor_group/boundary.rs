//! An activation that crosses a stage boundary in pieces: each member sends its own to the member with its place in the next stage's
//! group, or what of it that group's members need, where groups differ in size (`execute/recut`).
//!
//! Guarantees: a piece is taken for nothing but a piece of a tensor that is cut along the same axis over as many ranks as hold the stage;
//! errors name the shapes of piece and whole.

use super::group::TensorGroup;
use crate::stage::{Boundary, BoundaryError, CutOver, Payload, PayloadReader};
use burn::tensor::Tensor;

/// A tensor of rank `D` that is cut along `AXIS` over the ranks that hold a stage together, in a stage's input or output or in a
/// [`Skip`](crate::stage::Skip). A rank has its piece, and sends that: one part in as many as the group has ranks. A next stage that more or
/// fewer ranks hold gets the same tensor in as many pieces. Gradients go back in pieces too.
///
/// A group of one rank cuts nothing, so one stage serves groups of any size. What comes from the batch is whole, a `Tensor` and no `Cut`: where a type of stage may
/// stand first, its input is an enum of both (`boundary!(enum Signal { Whole(x), Piece(cut) })`), and [`Cut::of_whole`] cuts the first.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_pipeline::tensor_group::{Cut, TensorGroup};
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
    /// Of this rank's piece.
    pub fn new(piece: Tensor<D>, group: &TensorGroup) -> Self {
        const { assert!(AXIS < D, "a tensor has no such axis") };
        Self { piece, ranks: group.size() }
    }

    /// This rank's piece of a whole tensor, as [`TensorGroup::scatter_to`] cuts it.
    ///
    /// # Panics
    /// If the axis cannot be cut evenly.
    pub fn of_whole(whole: Tensor<D>, group: &TensorGroup) -> Self {
        Self::new(group.scatter_to(whole, AXIS), group)
    }

    /// The piece, for a stage that this group holds.
    ///
    /// # Panics
    /// If it is cut over another number of ranks than the group has.
    pub fn piece(self, group: &TensorGroup) -> Tensor<D> {
        let (Self { piece, ranks }, size) = (self, group.size());
        if ranks != size {
            let (of_piece, mut of_whole) = (piece.dims(), piece.dims());
            of_whole[AXIS] *= ranks;
            panic!(
                "the piece {of_piece:?} of {of_whole:?} is cut along axis {AXIS} over {ranks} rank(s), but {size} hold this stage \
                 together; make pieces with the group of the stage that passes them on (`Cut::new`)"
            );
        }
        piece
    }

    /// The whole tensor, for use by all ranks alike: [`TensorGroup::gather_from`].
    ///
    /// # Panics
    /// As [`Cut::piece`].
    pub fn whole(self, group: &TensorGroup) -> Tensor<D> {
        group.gather_from(self.piece(group), AXIS)
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
