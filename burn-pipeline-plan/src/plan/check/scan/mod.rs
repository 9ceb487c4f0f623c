//! The rules that a rank's own row can break: every task once, on the right rank, after its inputs there.
//!
//! Guarantees: after [`scan_rows`] has passed, each pair of stage and microbatch has exactly the events that the
//! plan requires, in a legal order on its rank. Only faults between two ranks remain.
//!
//! 1. A plan with fewer tasks than required forwards is refused before any table is allocated ([`refuse_short`]).
//!    So the table, one byte per pair, is never larger than the plan, whatever numbers a short text names.
//! 2. Each row is read once, in order. A task reads the bits of its own pair, and those of the neighbouring stage's
//!    pair if that stage is on the same rank. A required bit that is not set is an unmet need; if the task's own
//!    bit is set, the task is a duplicate. Counters track held activations and payloads.
//! 3. A wait must come after its start and before every use of its result.
//! 4. Vocabulary operations are in every row, so their bits, one byte per microbatch, are reset for each row.
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
