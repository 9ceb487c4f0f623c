//! Tests of the runtime, in one binary.

mod cases;
mod faults;
mod faulty;
mod hooked;
mod parity;
mod split;
mod watchdog;
