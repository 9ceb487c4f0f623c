//! Pipeline parallelism for the Burn deep learning framework.
//!
//! A schedule is data: it is built by a pure function, rewritten by passes, checked by proof, priced by a
//! simulator, drawn by a tracer and run by one interpreter, and all of them read the same type, the
//! [`Plan`](plan::Plan).

pub mod execute;
mod group;
pub mod link;
pub mod ops;
pub mod program;
pub mod stage;
pub mod train;

pub use burn_pipeline_plan::{cost, pass, plan, planner, schedule, simulate, trace};
