//! What a rank can see in its own row: every task once, on the right rank, after what it needs there.
//!
//! Guarantees: after [`scan_rows`] has passed, each pair of stage and microbatch has exactly the events that the plan
//! owes it, in a legal order on its rank. What may still be wrong needs two ranks to see.
//!
//! 1. A plan with fewer tasks than forwards due is refused before any table is made ([`refuse_short`]), so the
//!    table, one byte a pair, is never larger than the plan.
//! 2. Each row is read once, in order. A task looks at the bits of its own pair, and of its neighbour's where
//!    that lives on the same rank: a bit that should be there and is not is an unmet need, one that should not be
//!    there is a duplicate. Counters of live activations and received payloads go along.
//! 3. A wait comes after its start and before anything that uses what it waits for.
//! 4. At the end each pair must have exactly the bits that its stage owes.

mod complete;
mod compute;
mod refusals;
mod skips;
mod state;
mod transfers;
mod walk;
mod whole_stage;

pub(super) use complete::refuse_short;
pub(super) use walk::scan_rows;
