//! Plans compared with independent references: PyTorch's own orders, tables of the papers, closed formulas, small
//! second implementations, and properties over random sizes.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking and print what they covered")]

mod any_schedule;
mod browser;
mod brute_force;
mod check;
mod collectives;
#[cfg(feature = "cli")]
mod command_line;
mod drawings;
mod event;
mod exposed;
mod factors;
mod golden;
mod golden_orders;
mod golden_text;
mod idle;
mod idle_cells;
mod limits;
mod lowering;
mod megatron;
mod misc;
mod mutation;
mod order_traps;
mod orders;
mod overlap;
mod overlap_growth;
mod overlap_order;
mod overlap_properties;
mod page;
mod paper_formulas;
mod paper_tables;
mod partition;
mod pricing;
mod rows;
mod simulate;
mod simulate_properties;
mod skips;
mod tables;
mod trace;
mod train_from;
mod unit_steps;
mod vocabulary;
mod waits;
