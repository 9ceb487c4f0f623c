//! The collectives of a group, as operations on tensors without autodiff.
//!
//! Guarantees: a result that is whole has the same bits on all members, since sums are added in the order of members wherever they
//! are made; a sum of floats alone is made.
//!
//! 1. *All-reduce*: every member sends its tensor to all others and adds all in the order of members. That is one message's latency;
//!    each member sends its tensor once to each other one.
//! 2. *All-gather* along an axis: every member sends its piece to all others. *Reduce-scatter*: it cuts its tensor along the axis,
//!    sends each member its piece and adds those that it gets.
//! 3. *Broadcast* and *reduce*: from the root to all, and from all to the root; a reduce leaves zeros on the others.
//! 4. *All-to-all* along an axis: it cuts its tensor, sends each member its piece, and joins those that it gets.
//! 5. *Own piece*: the member's part along an axis, without a message.

use super::exchange::Outgoing;
use super::group::TensorGroup;
use crate::program::CapturedOp;
use crate::stage::AnyTensor;
use burn::backend::DispatchTensor;
use burn::tensor::{DType, Shape};

/// What the members do together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Collective {
    AllReduce,
    AllGather { axis: usize },
    ReduceScatter { axis: usize },
    AllToAll { axis: usize },
    OwnPiece { axis: usize },
    Broadcast { root: usize },
    Reduce { root: usize },
}

impl std::fmt::Display for Collective {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Collective::AllReduce => f.write_str("all-reduce"),
            Collective::AllGather { axis } => write!(f, "all-gather along axis {axis}"),
            Collective::ReduceScatter { axis } => write!(f, "reduce-scatter along axis {axis}"),
            Collective::AllToAll { axis } => write!(f, "all-to-all along axis {axis}"),
            Collective::OwnPiece { axis } => write!(f, "own piece along axis {axis}"),
            Collective::Broadcast { root } => write!(f, "broadcast from member {root}"),
            Collective::Reduce { root } => write!(f, "reduce to member {root}"),
        }
    }
}

/// A collective of one group.
#[derive(Clone, Debug)]
pub(super) struct GroupOp {
    pub(super) group: TensorGroup,
    pub(super) collective: Collective,
}

impl CapturedOp for GroupOp {
    fn name(&self) -> String {
        format!("{} over {} ranks", self.collective, self.group.size())
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        let size = self.group.size();
        let resized = |shape: &Shape| {
            let mut dims = shape.to_vec();
            match self.collective {
                Collective::AllGather { axis } => dims[axis] *= size,
                Collective::ReduceScatter { axis } | Collective::OwnPiece { axis } => dims[axis] /= size,
                _ => {}
            }
            Shape::from(dims)
        };
        inputs.iter().map(|(shape, dtype)| (resized(shape), *dtype)).collect()
    }

    fn is_collective(&self) -> bool {
        !matches!(self.collective, Collective::OwnPiece { .. })
    }

    fn run(&self, inputs: Vec<DispatchTensor>) -> Vec<DispatchTensor> {
        let run = |input| self.group.run(self.collective, AnyTensor::from_dispatch(input)).into_dispatch();
        inputs.into_iter().map(run).collect()
    }
}

impl TensorGroup {
    /// Runs a collective on a tensor without autodiff.
    ///
    /// # Panics
    /// Unwinds with a [`LinkError`](crate::link::LinkError) if the members cannot do it together.
    pub(super) fn run(&self, collective: Collective, own: AnyTensor) -> AnyTensor {
        if self.is_alone() {
            return own;
        }
        let (size, what) = (self.size(), format!("{collective} of {:?} {:?}", own.shape().to_vec(), own.dtype()));
        let exchange = |tensors, from: &mut dyn Iterator<Item = usize>| self.exchange(Outgoing { what, tensors }, from);
        let nothing = || vec![None; size];
        match collective {
            Collective::AllReduce => {
                let others = exchange(vec![Some(own.clone()); size], &mut (0..size));
                self.sum(own, others)
            }
            Collective::AllGather { axis } => {
                let others = exchange(vec![Some(own.clone()); size], &mut (0..size));
                // There is at least one piece, its own.
                AnyTensor::cat(self.in_order(own.clone(), others), axis).unwrap_or(own)
            }
            Collective::ReduceScatter { axis } => {
                let pieces: Vec<AnyTensor> = (0..size).map(|member| piece(&own, axis, member, size)).collect();
                let mine = pieces[self.member].clone();
                let others = exchange(pieces.into_iter().map(Some).collect(), &mut (0..size));
                self.sum(mine, others)
            }
            Collective::AllToAll { axis } => {
                let pieces: Vec<AnyTensor> = (0..size).map(|member| piece(&own, axis, member, size)).collect();
                let mine = pieces[self.member].clone();
                let others = exchange(pieces.into_iter().map(Some).collect(), &mut (0..size));
                AnyTensor::cat(self.in_order(mine, others), axis).unwrap_or(own)
            }
            Collective::OwnPiece { axis } => piece(&own, axis, self.member, size),
            Collective::Broadcast { root } if root == self.member => {
                exchange(vec![Some(own.clone()); size], &mut std::iter::empty());
                own
            }
            Collective::Broadcast { root } => exchange(nothing(), &mut std::iter::once(root)).pop().unwrap_or(own),
            Collective::Reduce { root } if root == self.member => {
                let others = exchange(nothing(), &mut (0..size));
                self.sum(own, others)
            }
            Collective::Reduce { root } => {
                let zeros = own.zeros(own.shape());
                let mut outgoing = nothing();
                outgoing[root] = Some(own);
                exchange(outgoing, &mut std::iter::empty());
                zeros
            }
        }
    }

    /// The values that member 0 has. All members call it with tensors of one shape.
    ///
    /// # Panics
    /// As [`TensorGroup::run`].
    pub(crate) fn first_values(&self, own: AnyTensor) -> AnyTensor {
        self.run(Collective::Broadcast { root: 0 }, own)
    }

    /// The tensors of all members in their order; `others` are those of the others.
    fn in_order(&self, own: AnyTensor, mut others: Vec<AnyTensor>) -> Vec<AnyTensor> {
        others.insert(self.member, own);
        others
    }

    fn sum(&self, own: AnyTensor, others: Vec<AnyTensor>) -> AnyTensor {
        let mut all = self.in_order(own.clone(), others).into_iter();
        let first = all.next().unwrap_or(own);
        all.fold(first, AnyTensor::plus)
    }
}

fn piece(whole: &AnyTensor, axis: usize, member: usize, size: usize) -> AnyTensor {
    let each = whole.shape()[axis] / size;
    whole.clone().narrow(axis, member * each, (member + 1) * each)
}
