//! Trainings under Burn's own loop as pipelines, compared with Burn's single-device strategy: metrics of every item,
//! final weights, the epoch in which training stops, and resuming from a checkpoint. Ranks are threads, and processes
//! over TCP.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking, and tell other processes why")]

mod classifier;
mod endings;
mod groups;
mod guide;
mod joined;
mod one_rank_each;
mod parity;
mod processes;
mod ranks;
mod training;
