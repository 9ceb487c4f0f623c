//! The collectives of a group, as operations on tensors without autodiff.
//!
//! Guarantees: a replicated result has the same bits on all members, since sums are added in member order wherever
//! they are made, or in one order of the link's; only floats are summed. Half precision travels as it is, is added
//! in f32 and rounded once.
//!
//! 1. *All-reduce*: every member sends its tensor to all others and adds all of them in member order. That takes
//!    one message's latency; each member sends its tensor once to each other one.
//! 2. *All-gather* along an axis: every member sends its piece to all others. *Reduce-scatter*: it cuts its tensor
//!    along the axis, sends each member its piece and adds those that it gets.
//! 3. *Broadcast* and *reduce*: from the root to all, and from all to the root; a reduce returns zeros on the
//!    others.
//! 4. *All-to-all* along an axis: it cuts its tensor, sends each member its piece, and joins those that it gets.
//! 5. *Own piece*: the member's part along an axis, without a message.
//! 6. If the link runs collectives by itself, it gets the tensors, in the layout that it needs, instead of messages
//!    (`by_link`).
//! 7. Each has two halves: a start, which sends and does not wait, and a wait, which receives and computes. A
//!    captured program has them as two operations, with others between them ([`CapturedOp::halves`]).

use super::group::TensorGroup;
use crate::payload::AnyTensor;
use crate::program::CapturedOp;
use burn::backend::DispatchTensor;
use burn::tensor::{DType, Shape};
use std::ops::Range;
use std::sync::Arc;

/// A collective.
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

/// A collective of one group, or a half of it.
#[derive(Clone, Debug)]
pub(super) struct GroupOp {
    pub(super) group: TensorGroup,
    pub(super) collective: Collective,
    part: Part,
}

/// The half of a collective that an operation runs, or all of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Whole,
    Start,
    Wait,
}

impl GroupOp {
    /// The whole collective.
    pub(super) fn new(group: TensorGroup, collective: Collective) -> Self {
        Self { group, collective, part: Part::Whole }
    }
}

impl CapturedOp for GroupOp {
    fn name(&self) -> String {
        let part = match self.part {
            Part::Whole => "",
            Part::Start => "start of ",
            Part::Wait => "wait for ",
        };
        format!("{part}{} over {}", self.collective, self.group.in_words())
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        if self.part == Part::Start {
            return Vec::new();
        }
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

    fn flops(&self, inputs: &[(Shape, DType)], outputs: &[(Shape, DType)]) -> u64 {
        let elements = |(shape, _): &(Shape, DType)| shape.num_elements() as u64;
        match self.part {
            Part::Start => 0,
            Part::Whole | Part::Wait => inputs.iter().chain(outputs).map(elements).max().unwrap_or(0),
        }
    }

    fn is_collective(&self) -> bool {
        !matches!(self.collective, Collective::OwnPiece { .. })
    }

    fn is_among_replicas(&self) -> bool {
        self.group.is_of_replicas()
    }

    fn halves(&self) -> Option<[Arc<dyn CapturedOp>; 2]> {
        let half = |part| -> Arc<dyn CapturedOp> { Arc::new(Self { part, ..self.clone() }) };
        (self.is_collective() && self.part == Part::Whole).then(|| [half(Part::Start), half(Part::Wait)])
    }

    fn run(&self, inputs: Vec<DispatchTensor>) -> Vec<DispatchTensor> {
        let inputs = inputs.into_iter().map(AnyTensor::from_dispatch);
        let (group, collective) = (&self.group, self.collective);
        match self.part {
            Part::Whole => inputs.map(|own| group.run(collective, own).into_dispatch()).collect(),
            Part::Start => {
                inputs.for_each(|own| group.start(collective, &own));
                Vec::new()
            }
            Part::Wait => inputs.map(|own| group.wait(collective, own).into_dispatch()).collect(),
        }
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
        self.start(collective, &own);
        self.wait(collective, own)
    }

    /// Begins a collective: sends the others what they need of this member's tensor.
    fn start(&self, collective: Collective, own: &AnyTensor) {
        if self.by_link {
            return self.begin_by_link(collective, own);
        }
        if let Collective::OwnPiece { .. } = collective {
            return;
        }
        self.send_each(&described(collective, own), |member| match collective {
            Collective::AllReduce | Collective::AllGather { .. } => Some(own.clone()),
            Collective::ReduceScatter { axis } | Collective::AllToAll { axis } => {
                Some(piece(own, axis, member, self.size()))
            }
            Collective::Broadcast { root } => (root == self.member()).then(|| own.clone()),
            Collective::Reduce { root } => (root == member).then(|| own.clone()),
            Collective::OwnPiece { .. } => None,
        });
    }

    /// Ends a collective that was begun with the same tensor: receives what the others sent.
    fn wait(&self, collective: Collective, own: AnyTensor) -> AnyTensor {
        let (size, me) = (self.size(), self.member());
        let what = if self.by_link { String::new() } else { described(collective, &own) };
        let part = match collective {
            Collective::ReduceScatter { axis } | Collective::AllToAll { axis } | Collective::OwnPiece { axis } => {
                piece(&own, axis, me, size)
            }
            _ => own,
        };
        let sent_by = |from: Range<usize>| self.receive_each(&what, from, |_| part.zeros(part.shape()));
        match collective {
            Collective::OwnPiece { .. } => part,
            _ if self.by_link => self.end_by_link(collective, part),
            Collective::Broadcast { root } if root == me => part,
            Collective::Broadcast { root } => sent_by(root..root + 1).pop().unwrap_or(part),
            Collective::Reduce { root } if root != me => part.zeros(part.shape()),
            Collective::AllReduce | Collective::ReduceScatter { .. } | Collective::Reduce { .. } => {
                // There is at least this member's own part.
                AnyTensor::sum(self.in_order(part.clone(), sent_by(0..size))).unwrap_or(part)
            }
            Collective::AllGather { axis } | Collective::AllToAll { axis } => {
                AnyTensor::cat(self.in_order(part.clone(), sent_by(0..size)), axis).unwrap_or(part)
            }
        }
    }

    /// The values of member 0. All members call it with tensors of one shape.
    pub(crate) fn first_values(&self, own: AnyTensor) -> AnyTensor {
        self.run(Collective::Broadcast { root: 0 }, own)
    }

    /// The tensors of all members in order.
    pub(super) fn in_order(&self, own: AnyTensor, mut others: Vec<AnyTensor>) -> Vec<AnyTensor> {
        others.insert(self.member(), own);
        others
    }
}

/// Describes a collective, with shape and element type of the member's tensor.
pub(super) fn described(collective: Collective, own: &AnyTensor) -> String {
    format!("{collective} of {:?} {:?}", own.shape().to_vec(), own.dtype())
}

/// A member's piece of a whole tensor along an axis.
pub(super) fn piece(whole: &AnyTensor, axis: usize, member: usize, size: usize) -> AnyTensor {
    let each = whole.shape()[axis] / size;
    whole.clone().narrow(axis, member * each, (member + 1) * each)
}
