//! The planner and the synthesis, compared with an exact optimum, the catalogue and the simulator.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking and print what they measured")]

mod auto;
mod bound;
mod cuts;
mod every_order;
mod exact;
mod frozen;
mod groups;
mod limits;
mod skips;
mod synthesis;
mod vocabulary;
