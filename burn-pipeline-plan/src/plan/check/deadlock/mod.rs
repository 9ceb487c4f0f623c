//! Deadlock: ranks run against each other until all reach the end of their rows, or those left wait in a cycle.
//!
//! Guarantees: exact, and linear in transfers (in an unlowered plan, in tasks).
//!
//! - Linear: each step of a rank either carries something out or makes the rank wait, and what it waits for wakes it once.
//! - Exact: which rank runs next makes no difference. A transfer that can be carried out stays possible whatever other
//!   ranks do meanwhile, so every order of running ends in the same state. One order is enough.
//! - Every stuck plan has a cycle: a rank that waits does so for an action in another rank's row (the scan has found it
//!   there) that the other rank has not reached, so that one waits too. There are finitely many ranks, so following
//!   the waits must return to one met before.
//!
//! 1. Lowered: only transfers matter. A compute cell needs nothing beyond its own row (`scan` has proved that), and
//!    collectives of replicas run in groups of their own. A collective of all ranks never makes its rank wait where it starts;
//!    what uses it waits until all ranks have started it. A start never waits. A receive ends once its send has started. A send ends
//!    once its receive has started (rendezvous) or, with a buffer of K, once the receive K places before its own has. The
//!    rank waits for the end at the transfer itself, or at the wait if there is one.
//! 2. Unlowered: a cell waits for the cell of the neighbouring stage, on whatever rank. A fused cell waits for what both
//!    its tasks need, as it will after lowering, when its receives precede it.

mod cycle;
mod lowered;
mod unlowered;

pub(super) use lowered::refuse_lowered;
pub(super) use unlowered::refuse_unlowered;
