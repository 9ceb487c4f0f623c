//! The conformance suite: what every link must do, for tests of transports.
//!
//! A transport that passes [`CASES`] with two, three and five ranks fulfils the contract of [`Link`]: messages
//! arrive in order and bit for bit, whatever their shapes; gathers give every rank the same; every wait ends at its
//! deadline, which moves while some rank does slow work, with an error that names the awaited rank; a failure wakes
//! every rank; after an interruption a link has dropped earlier messages; a rank that drops its link ends the waits for
//! it.
//!
//! 1. All ranks run the same case at once, each with its own end of one new link. A failed case panics, like a
//!    test.
//! 2. If ranks are threads of one process, [`run_on_threads`] runs every case. If they are processes, each process
//!    runs [`CASES`] in order and opens a new link for each.
//!
//! Reading order: `messages.rs`, `failures.rs`; their helpers are in `material.rs`.
//!
//! ```no_run
//! use burn::tensor::Device;
//! use burn_pipeline::link::{Threads, conformance};
//!
//! for ranks in [2, 3, 5] {
//!     conformance::run_on_threads(ranks, || {
//!         let threads = Threads::new(ranks);
//!         move |rank| threads.link(rank, Device::flex())
//!     });
//! }
//! ```

#![allow(clippy::unwrap_used, reason = "cases fail by panicking")]

mod failures;
mod material;
mod messages;

use super::Link;
use std::thread::Builder;

type Case = (&'static str, fn(&mut dyn Link));

/// All cases: what a link must do, and the function that tests it as one rank of two or more, with this rank's end
/// of the link. It panics if the link does something else.
pub const CASES: &[Case] = &[
    ("messages keep their order and their contents", messages::keeps_order),
    ("every kind of tensor arrives bit for bit", messages::carries_every_kind),
    ("large messages cross each other", messages::carries_large_messages),
    ("shapes repeat and change from message to message", messages::lets_shapes_change),
    ("sends do not wait for receives", messages::sends_ahead),
    ("a probe names the next message and leaves it there", messages::tells_what_has_come),
    ("a rank sends to itself", messages::sends_to_itself),
    ("messages travel while ranks compute", messages::overlaps),
    ("a gather gives every rank's value to every rank", messages::gathers),
    ("a gather carries bytes", messages::gathers_bytes),
    ("a message out of order is refused", failures::refuses_disorder),
    ("ranks that do not exist are refused", failures::refuses_unknown_ranks),
    ("a wait ends at its deadline and says what the peer is doing", failures::keeps_deadlines),
    ("a wait is extended for a rank that works, and not for ranks that wait", failures::waits_for_slow_work),
    ("a gather names the rank that is missing", failures::names_the_missing),
    ("a rank that leaves ends the waits for it at once", failures::notices_who_leaves),
    ("a failure wakes every rank", failures::wakes_everybody),
    ("what was sent before an interruption is gone after it", failures::goes_on_after_an_interruption),
];

/// Runs every case with `ranks` threads.
///
/// `open` is called once for each case; its result returns each rank's end of a new link, on the rank's own thread.
///
/// # Panics
/// Panics if a link breaks its contract, or a thread cannot be started. The panicking thread has the case's name.
pub fn run_on_threads<L: Link, E: Fn(usize) -> L + Sync>(ranks: usize, open: impl Fn() -> E) {
    for (name, case) in CASES {
        let end = &open();
        std::thread::scope(|scope| {
            for rank in 0..ranks {
                let named = Builder::new().name(format!("{name}: rank {rank} of {ranks}"));
                named.spawn_scoped(scope, move || case(&mut end(rank))).unwrap();
            }
        });
    }
}
