//! Pipeline parallelism for the Burn deep learning framework.
//!
//! A schedule is data: it is built by a pure function, rewritten by passes, checked by proof, priced by a
//! simulator, drawn by a tracer and run by one interpreter, and all of them read the same type, the
//! [`Plan`](plan::Plan).

pub mod cost;
pub mod pass;
pub mod plan;
pub mod planner;
pub mod schedule;
pub mod simulate;
pub mod trace;

#[cfg(feature = "runtime")]
pub mod execute;
#[cfg(feature = "runtime")]
pub mod group;
#[cfg(feature = "runtime")]
pub mod link;
#[cfg(feature = "runtime")]
pub mod ops;
#[cfg(feature = "traced")]
pub mod program;
#[cfg(feature = "runtime")]
pub mod stage;
#[cfg(feature = "runtime")]
pub mod train;
