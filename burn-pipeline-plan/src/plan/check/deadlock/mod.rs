//! The deadlock check: ranks run against each other until all reach the end of their rows, or the rest wait in a
//! cycle.
//!
//! Guarantees: exact, and linear in transfers (in an unlowered plan, in tasks).
//!
//! - Linear: each step of a rank either performs something or makes the rank wait, and each event wakes a rank
//!   once.
//! - Exact: the order of running makes no difference. A transfer that can run stays possible whatever other ranks
//!   do meanwhile, so every order ends in the same state, and one order suffices.
//! - Every blocked plan has a cycle: a blocked rank waits for an action in another rank's row (the scan has found
//!   it there) that the other rank has not reached, so that rank is blocked too. There are finitely many ranks, so
//!   following the waits returns to one already visited.
//!
//! 1. Lowered: only transfers matter. A compute cell needs nothing beyond its own row (`scan` has proved that), and
//!    collectives of replicas run in their own groups. A collective of all ranks never blocks its rank where it
//!    starts; its use waits until all ranks have started it. A start never waits. A receive ends once its send has
//!    started. A send ends once its receive has started (rendezvous) or, with a buffer of K, once the receive K
//!    places earlier has started. The rank waits for the end at the transfer itself, or at its wait if there is
//!    one.
//! 2. Unlowered: a cell waits for the cell of the neighbouring stage, on any rank. A fused cell waits for the
//!    inputs of both its tasks, as it does after lowering, when its receives precede it.

mod cycle;
mod lowered;
mod unlowered;

pub(super) use lowered::refuse_lowered;
pub(super) use unlowered::refuse_unlowered;
