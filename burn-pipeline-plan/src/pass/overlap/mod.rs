//! Communication moved where computation hides it: passes over lowered plans whose starts have waits of their own
//! (`insert_waits`).
//!
//! Guarantees, of every pass here:
//!
//! - the plan passes [`check`](crate::plan::check) before and after, under the transport of the options: by
//!   construction (see `rules`), and checked again;
//! - it is never slower in simulation, and on no rank holds more than it did and the extra that the options grant: else
//!   the plan stays as it was, and the report says why;
//! - sends, receives and collectives of a rank start in the order in which they did
//!   ([`OverlapPass::OrderCommunication`] alone changes it, so that all ranks follow one order);
//! - the same plan, profile and options give the same result, so ranks that share a profile
//!   ([`Profile::median`](crate::cost::Profile::median)) decide alike;
//! - time is near linear in the plan, but for the simulations it is judged by.
//!
//! 1. `cell` prices the cells of a row and finds each start's wait; `estimate` estimates what computation hides.
//! 2. `graph` and `greedy` place all cells of a row at once; `iterative`, on `memory`, swaps neighbours.
//! 3. `order` gives all ranks one order of messages.
//! 4. What came out is simulated and judged here; `report` is the table.
//!
//! The passes are those of PyTorch's `torch/_inductor/comms.py`, where the rows are those of a compiled program.

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

pub use estimate::{OverlapEstimate, StartEstimate, estimate_overlap};
pub use options::{OverlapError, OverlapOptions, OverlapPass};
pub use order::communication_order;
pub use report::{Kept, Limit, PassReport, PassRow};
pub use run::{Overlapped, overlap, run_passes};
