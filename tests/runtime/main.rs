//! Tests of the runtime, in one binary.

mod boundary;
mod cases;
mod contract;
mod faults;
mod faulty;
mod hooked;
mod parity;
mod refusals;
mod seam;
mod watchdog;
