//! Which two neighbouring cells of a row may change places.
//!
//! Guarantees: rows rewritten by these swaps alone still pass [`check`](crate::plan::check) under the same transport:
//!
//! 1. What uses something stays behind what makes it ([`tied`]).
//! 2. Starts keep their order, so both ends of every channel still agree, and every rank still starts its
//!    collectives alike.
//! 3. A start may move up over a wait, never a wait over a start. A deadlock is a circle in which each rank stands at a
//!    wait that comes before the start that the rank before it needs. Every swap leaves at most as many pairs of a
//!    wait before a start, so it can break circles and cannot close one.

use super::cell::Cell;
use crate::plan::{Op, Task};

/// May `first` and `second`, which stand in this order, change places?
pub(super) fn may_swap(first: &Cell, second: &Cell) -> bool {
    let starts = first.role.starts() && (second.role.starts() || second.role.waits());
    !starts && !are_tied(first, second)
}

/// Does one of two cells need what the other one does?
pub(super) fn are_tied(first: &Cell, second: &Cell) -> bool {
    first.action.tasks().any(|a| second.action.tasks().any(|b| tied(a, b)))
}

/// Must two tasks of one rank keep their order for what they work on? Symmetric.
fn tied(a: Task, b: Task) -> bool {
    if a.stage() != b.stage() {
        let next = a.stage().replica() == b.stage().replica() && a.stage().index().abs_diff(b.stage().index()) == 1;
        let forwards = a.op() == Op::Forward && b.op() == Op::Forward;
        let backwards = a.op().gives_input_gradient() && b.op().gives_input_gradient();
        return next && a.microbatch() == b.microbatch() && (forwards || backwards);
    }
    match (a.microbatch(), b.microbatch()) {
        (Some(m), Some(n)) => m == n && tied_in_pair(a.op(), b.op()),
        (None, None) => is_parameters(a.op()) == is_parameters(b.op()),
        (None, Some(_)) => tied_to_stage(a.op(), b.op()),
        (Some(_), None) => tied_to_stage(b.op(), a.op()),
    }
}

/// Of the same stage and microbatch.
fn tied_in_pair(a: Op, b: Op) -> bool {
    match (value(a), value(b)) {
        (None, None) => true,
        (Some(x), Some(y)) => x == y,
        (Some(x), None) => touches(b, x),
        (None, Some(y)) => touches(a, y),
    }
}

/// An operation on a whole stage, and one for a microbatch of it.
fn tied_to_stage(whole: Op, op: Op) -> bool {
    match whole {
        Op::ReduceGrad => op.gives_weight_gradient(),
        Op::WaitReduceGrad => false,
        _ => op.is_compute(),
    }
}

fn is_parameters(op: Op) -> bool {
    matches!(op, Op::Unshard | Op::WaitUnshard | Op::Reshard)
}

/// The start that stands for the value that a transfer or its wait is about.
fn value(op: Op) -> Option<Op> {
    let start = op.awaits().unwrap_or(op);
    start.is_transfer().then_some(start)
}

/// Does a computation make or use the value of a transfer?
fn touches(compute: Op, transfer: Op) -> bool {
    match transfer {
        Op::SendForward | Op::ReceiveForward => compute == Op::Forward,
        _ => compute.gives_input_gradient(),
    }
}
