//! All-to-all of uneven parts: each member sends rows to the members that need them, with a backward.
//!
//! Guarantees: rows keep their order, ordered by sender; no message is sent for zero rows; no tensor is empty,
//! since a row of zeros follows all others.
//!
//! 1. The members tell each other the numbers of rows ([`TensorGroup::all_counts`]). These are numbers on the host,
//!    so a capture cannot contain this.
//! 2. Each sends its rows, and receives the others' ([`TensorGroup::all_to_all_rows`]). Gradients go back the same
//!    way.

use super::collective::Collective;
use super::group::TensorGroup;
use crate::ops::Pair;
use crate::payload::AnyTensor;
use crate::program::CapturedOp;
use burn::backend::DispatchTensor;
use burn::tensor::{DType, Int, Shape, Tensor};
use std::ops::Range;
use std::sync::Arc;

/// Rows sent and received, by member.
#[derive(Clone, Debug)]
struct RowsOp {
    group: TensorGroup,
    sent: Arc<[usize]>,
    received: Arc<[usize]>,
}

impl TensorGroup {
    /// Gathers the numbers of all members, in member order; each passes equally many. They are read from the
    /// device.
    ///
    /// # Panics
    /// Panics if the device fails, or in a capture, which has no numbers.
    pub fn all_counts(&self, own: Tensor<1, Int>) -> Vec<Vec<usize>> {
        let device = own.device().inner();
        let numbers: Vec<i64> = own.into_data().iter::<i64>().collect();
        let count = numbers.len().max(1);
        let own = AnyTensor::new(Tensor::<1, Int>::from_data(&*numbers, &device));
        let all = self.run(Collective::AllGather { axis: 0 }, own);
        let all = all.into_data().unwrap_or_else(|message| panic!("the counts of a group cannot be read: {message}"));
        let all: Vec<usize> = all.iter::<i64>().map(|number| usize::try_from(number).unwrap_or_default()).collect();
        all.chunks(count).map(<[usize]>::to_vec).collect()
    }

    /// Sends each member its rows, and returns those that the members send to this one, in member order.
    ///
    /// Before and after, a row of zeros follows the rows: the tensors are `[n + 1, width]`, with `n` the sum of
    /// `sent` before and of `received` after. `sent` and `received` have one number for each member, including this
    /// one. All members must agree on them ([`TensorGroup::all_counts`]).
    ///
    /// # Panics
    /// Panics if the number of rows is different.
    pub fn all_to_all_rows(&self, rows: Tensor<2>, sent: &[usize], received: &[usize]) -> Tensor<2> {
        assert_eq!((sent.len(), received.len()), (self.size(), self.size()), "numbers of rows, one for each member");
        assert_eq!(rows.dims()[0], sent.iter().sum::<usize>() + 1, "rows to be sent, and a row of zeros");
        let op = |sent: &[usize], received: &[usize]| -> Option<Arc<dyn CapturedOp>> {
            Some(Arc::new(RowsOp { group: self.clone(), sent: sent.into(), received: received.into() }))
        };
        self.tracked(rows, Pair { forward: op(sent, received), backward: op(received, sent), always: false })
    }
}

impl RowsOp {
    /// The range of the rows for a member.
    fn rows_for(&self, member: usize) -> Range<usize> {
        let start = self.sent[..member].iter().sum();
        start..start + self.sent[member]
    }

    fn exchange(&self, own: AnyTensor) -> AnyTensor {
        let (group, width) = (&self.group, own.shape()[1]);
        let (size, me) = (group.size(), group.member());
        let rows_for = |member: usize| {
            let Range { start, end } = self.rows_for(member);
            (end > start).then(|| own.clone().narrow(0, start, end))
        };
        let what = format!("all-to-all of rows of {width} {:?}", own.dtype());
        let from = || (0..size).filter(|&member| self.received[member] > 0);
        group.send_each(&what, rows_for);
        let absent = |member: usize| own.zeros(Shape::new([self.received[member], width]));
        let mut came = group.receive_each(&what, from(), absent).into_iter();
        let mut parts = Vec::new();
        for member in from() {
            let part = if member == me { rows_for(me) } else { came.next() };
            let (wanted, rows) = (self.received[member], part.as_ref().map_or(0, |part| part.shape()[0]));
            if rows != wanted {
                self.refuse(member, format!("{what}, where it expects {wanted}"), format!("{what}, and sent {rows}"));
            }
            parts.extend(part);
        }
        let zero = own.zeros(Shape::new([1, width]));
        parts.push(zero.clone());
        AnyTensor::cat(parts, 0).unwrap_or(zero)
    }

    /// Unwinds with the error that a member sent another number of rows than announced.
    fn refuse(&self, member: usize, ours: String, theirs: String) -> ! {
        let (rank, peer) = (self.group.set.rank(), self.group.set.ranks()[member]);
        std::panic::resume_unwind(Box::new(self.group.unlike(rank, peer, ours, theirs)))
    }
}

impl CapturedOp for RowsOp {
    fn name(&self) -> String {
        format!("all-to-all of rows over {}, {:?} for {:?}", self.group.in_words(), self.sent, self.received)
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        let rows = self.received.iter().sum::<usize>() + 1;
        inputs.iter().map(|(shape, dtype)| (Shape::new([rows, shape[1]]), *dtype)).collect()
    }

    fn is_collective(&self) -> bool {
        true
    }

    fn is_among_replicas(&self) -> bool {
        self.group.is_of_replicas()
    }

    fn run(&self, inputs: Vec<DispatchTensor>) -> Vec<DispatchTensor> {
        let run = |input| self.exchange(AnyTensor::from_dispatch(input)).into_dispatch();
        inputs.into_iter().map(run).collect()
    }
}
