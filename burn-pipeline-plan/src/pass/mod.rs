//! Passes: `Plan -> Plan` rewrites. One file a pass, each with a before and an after.
//!
//! The usual order is [`merge_backward`] (where a split backward gains nothing), [`insert_unshard`],
//! [`insert_reduce_grad`], then [`insert_transfers`]: the last one gives every cell that it finds a turn, so what
//! stands in the rows when it runs decides where receives land. [`insert_waits`] then parts the start of what was
//! inserted from its end, and [`overlap`] moves both where computation hides what lies between.

mod error;
mod idle;
mod merge_backward;
pub mod overlap;
mod reduce_grad;
mod transfers;
mod unshard;
mod waits;

pub use error::{PassError, Stuck};
pub use idle::{align_idle, strip_idle};
pub use merge_backward::merge_backward;
pub use reduce_grad::insert_reduce_grad;
pub use transfers::insert_transfers;
pub use unshard::insert_unshard;
pub use waits::{Placing, WaitOptions, insert_waits, strip_waits};
