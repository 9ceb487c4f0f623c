//! Tests of the runtime, in one binary.

mod cases;
mod parity;
