//! Tensor-parallel stages, compared with the plain loop on one device.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking and print what they covered")]

mod adapters;
mod boundary;
mod checkpoints;
mod dropout;
mod faults;
mod half;
mod layers;
mod links;
mod measured;
mod model;
mod overlap;
mod parity;
mod plain;
mod recut;
mod recut_faults;
mod refusals;
mod sequential;
mod sharded;
mod sizes;
mod split;
mod tied;
mod unlike;
mod watched;
