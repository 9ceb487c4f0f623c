//! Tests of the runtime, in one binary.

mod boundary;
mod cases;
mod concurrency;
mod contract;
mod deferred;
mod faults;
mod faulty;
mod hooked;
mod microbatches;
mod parity;
mod refusals;
mod seam;
mod split;
mod watchdog;
