//! Passes that move communication to where computation hides it, in lowered plans with waits
//! ([`Plan::with_waits`](crate::plan::Plan::with_waits)).
//!
//! Guarantees of every pass:
//!
//! - The plan passes [`check`](crate::plan::Plan::check) before and after, under the transport of the options. This
//!   holds by construction (`rules` says why), and is checked again.
//! - In simulation the new plan is never slower, and no rank holds more than before plus the extra that the options
//!   allow. Otherwise the plan stays unchanged, and the report says why.
//! - Sends, receives and collectives of a rank keep the order of their starts. Only
//!   [`OverlapPass::OrderCommunication`] changes it, so that all ranks follow one order.
//! - The same plan, profile and options give the same result, so ranks with one profile
//!   ([`Profile::median`](crate::cost::Profile::median)) get one plan.
//! - The passes themselves take near linear time. Each result is simulated once more to be judged.
//!
//! Without estimates ([`OverlapOptions::estimates`]) the order does not depend on seconds. Iterative passes move
//! each start up to the computation of its value or the previous start, and each wait down to its first use, as far
//! as memory and reach allow, without moving computations along. Greedy passes do so for all cells at once, and
//! fill nothing. The judge still simulates.
//!
//! Files, in the order in which a plan passes through them:
//!
//! 1. `options` names the passes and their budgets.
//! 2. `cell` gives each cell of a row its costs, and each start its wait. `estimate` says how much of each start
//!    computation hides.
//! 3. `rules` says which cells may be swapped. The greedy passes (`graph`, `greedy`) place all cells of a row at
//!    once; the iterative ones (`iterative`, with `memory`) swap neighbours; `order` finds one order of messages
//!    for all ranks.
//! 4. `attempt` applies one pass to all rows, `judge` checks and simulates the result, `tries` repeats greedy
//!    passes within a shorter reach, `run` runs passes one after the other, and `report` is the table of their
//!    results.
//!
//! The passes are those of PyTorch's `torch/_inductor/comms.py`, where a row is a compiled program.

mod attempt;
mod cell;
mod estimate;
mod graph;
mod greedy;
mod iterative;
mod judge;
mod memory;
mod options;
mod order;
mod report;
mod rules;
mod run;
mod tries;

pub use options::{OverlapOptions, OverlapPass};
pub use report::{Limit, PassReport, StartReport};
pub use run::Overlapped;
