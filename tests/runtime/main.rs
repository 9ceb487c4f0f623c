//! Tests of the runtime, in one binary.

mod parity;
