//! Rules for swaps: which two neighbouring cells of a row may be swapped.
//!
//! Guarantees: rows rewritten by these swaps alone still pass [`check`](crate::plan::Plan::check) under the same
//! transport:
//!
//! 1. A use of a value stays after the cell that computes or receives it ([`tied`]).
//! 2. Starts keep their order, so both ends of every channel still have the same order, and all ranks still start
//!    their collectives in one order.
//! 3. A start may move before a wait, but no wait before a start. A deadlock is a cycle of ranks, each at a wait
//!    that precedes the start which the next rank needs. A swap of this kind removes such a pair of wait and start
//!    and never adds one, so it can break a cycle but not close one.

use super::cell::Cell;
use crate::plan::{Op, Task};

/// Returns true if `first` and `second`, neighbours in this order, may be swapped.
pub(super) fn may_swap(first: &Cell, second: &Cell) -> bool {
    let starts = first.role.starts() && (second.role.starts() || second.role.waits());
    !starts && !are_tied(first, second)
}

/// Returns true if two cells of one rank must keep their order.
pub(super) fn are_tied(first: &Cell, second: &Cell) -> bool {
    first.action.tasks().any(|a| second.action.tasks().any(|b| tied(a, b)))
}

/// Returns true if two tasks of one rank must keep their order because they share data or parameters. Symmetric.
fn tied(a: Task, b: Task) -> bool {
    if a.stage() != b.stage() {
        let next = a.stage().route() == b.stage().route() && a.stage().index().abs_diff(b.stage().index()) == 1;
        let forwards = a.op() == Op::Forward && b.op() == Op::Forward;
        // The earlier stage may be the first that trains, with `W` alone; any other `W` comes later anyway.
        let (earlier, later) = if a.stage().index() < b.stage().index() { (a, b) } else { (b, a) };
        let backwards = earlier.op().is_backward() && later.op().gives_input_gradient();
        return next && a.microbatch() == b.microbatch() && (forwards || backwards);
    }
    match (a.microbatch(), b.microbatch()) {
        (Some(m), Some(n)) => m == n && tied_in_pair(a.op(), b.op()),
        (None, None) => is_parameters(a.op()) == is_parameters(b.op()),
        (None, Some(_)) => tied_to_stage(a.op(), b.op()),
        (Some(_), None) => tied_to_stage(b.op(), a.op()),
    }
}

/// Returns true if two operations on the same stage and microbatch are tied.
fn tied_in_pair(a: Op, b: Op) -> bool {
    match (value(a), value(b)) {
        (None, None) => true,
        (Some(x), Some(y)) => x == y,
        (Some(x), None) => touches(b, x),
        (None, Some(y)) => touches(a, y),
    }
}

/// Returns true if an operation on a whole stage and one on a microbatch of it are tied.
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

/// The start of a transfer, or of a wait's transfer: it identifies the moved value.
fn value(op: Op) -> Option<Op> {
    let start = op.awaits().unwrap_or(op);
    start.is_transfer().then_some(start)
}

/// Returns true if a computation produces or uses the value of a transfer.
fn touches(compute: Op, transfer: Op) -> bool {
    match transfer {
        Op::SendForward | Op::ReceiveForward => compute == Op::Forward,
        Op::ReceiveBackward => compute.is_backward(),
        _ => compute.gives_input_gradient(),
    }
}
