//! The link over mock CUDA and NCCL libraries, on a machine without a GPU.
//!
//! The mock (`library/lib.rs`) is compiled here with the standard library alone, and the ranks' processes find it
//! through `LD_LIBRARY_PATH`. It enforces the rules of both libraries and ends a process that breaks one. The link
//! runs on it unchanged, and so do CubeCL's CUDA runtime and its kernels, which the mock interprets.
//!
//! `computing.rs`, `convolutions.rs`, `kernels.rs`, `replicas.rs` and `schedules.rs` compute on the mock's processors,
//! and so do the kernels of experts (`tests/cube/stand_in.rs`). The other tests that train compute on the host, and
//! their tensors are moved to the device to be sent (`tests/on_device.rs`).
//!
//! Only a GPU can test the rest: matrix instructions, libdevice's own code and races within a kernel; NCCL's own
//! transports; how CUDA orders events over a context; speed.

mod computing;
mod convolutions;
mod endings;
mod failures;
mod folder;
mod groups;
mod kernels;
#[cfg(any())]
#[path = "library/lib.rs"]
mod library;
mod links;
mod messages;
mod rank;
mod replicas;
mod rules;
mod schedules;
mod storm;
mod tower;
mod vocabulary;

use crate::processes::Processes;
use folder::{folder, variables};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs a part of a rank's process, by name.
pub(crate) fn run(part: &str) {
    let computing = || computing::part(part) || schedules::part(part);
    let links = || links::part(part) || failures::part(part) || endings::part(part);
    let known = computing()
        || links()
        || groups::part(part)
        || vocabulary::part(part)
        || kernels::part(part)
        || rules::part(part);
    assert!(known, "there is no part {part}");
}

/// Starts ranks that run a part over the mock libraries. Of two ranks of a link, the higher one must launch first.
fn start(ranks: usize, part: &str, more: &[(&str, &str)]) -> Processes {
    start_without_link(ranks, part, &[&[("STAND_IN_HIGHEST_FIRST", "1")], more].concat())
}

/// Starts ranks that call the mock libraries themselves.
fn start_without_link(ranks: usize, part: &str, more: &[(&str, &str)]) -> Processes {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    let rooms = folder().join(format!("rooms-{}", STARTED.fetch_add(1, Ordering::Relaxed)));
    std::fs::create_dir(&rooms).unwrap();
    Processes::start(ranks, part, &[&variables(folder(), &rooms), more].concat())
}
