//! Tests of the runtime, in one binary.

mod cases;
mod deferred;
mod faults;
mod faulty;
mod hooked;
mod parity;
mod split;
mod watchdog;
