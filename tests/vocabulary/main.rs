//! Vocabulary-parallel pipelines, compared with the plain loop on one device with the ordinary layers.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking and print what they covered")]

mod checkpoints;
mod evaluation;
mod faults;
mod half;
mod links;
mod model;
mod narrow_ids;
mod parity;
mod plain;
mod refusals;
