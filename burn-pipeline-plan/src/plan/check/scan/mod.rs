//! The rules that a rank's own row can break: every task once, on the right rank, after what it needs there.
//!
//! Guarantees: after [`scan_rows`] has passed, each pair of stage and microbatch has exactly the events that the plan
//! requires, in a legal order on its rank. What may still be wrong is between two ranks.
//!
//! 1. A plan with fewer tasks than required forwards is refused before any table is allocated ([`refuse_short`]). So the
//!    table, one byte a pair, is never larger than the plan, whatever numbers a short text names.
//! 2. Each row is read once, in order. A task reads the bits of its own pair, and those of the neighbouring stage's pair
//!    where that stage is on the same rank. A required bit that is not set is an unmet need; the task's own bit, if set,
//!    is a duplicate. Counters of held activations and payloads are kept on the way.
//! 3. A wait must come after its start and before every use of what it waits for.
//! 4. Operations of a spread vocabulary stand in every row, so their bits, one byte a microbatch, are counted anew in each.
//! 5. At the end each pair must have exactly the bits that its stage requires.

mod complete;
mod compute;
mod refusals;
mod skips;
mod state;
mod transfers;
mod vocabulary;
mod walk;
mod whole_stage;

pub(super) use complete::refuse_short;
pub(super) use walk::scan_rows;
