//! Tests of the runtime, in one binary.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests stop where something fails")]

mod cases;
mod parity;
mod split;
