//! The link over a stand-in for CUDA's driver and NCCL, on a machine without a GPU.
//!
//! The stand-in (`library/lib.rs`) is compiled here, with nothing but the standard library, and the ranks' processes find it
//! through `LD_LIBRARY_PATH`. It keeps the rules of both libraries and ends a process that breaks one. The link runs
//! unchanged on it, and so does CubeCL's CUDA runtime, except kernels.
//!
//! Stages compute on the host where the tests train some: their tensors go to the device to be sent (`tests/on_device.rs`).
//!
//! What this leaves to a GPU: kernels, so tensors with padded rows and all computing; NCCL's own transports; how CUDA orders
//! events over a context; speed.

mod endings;
mod failures;
mod groups;
#[cfg(any())]
#[path = "library/lib.rs"]
mod library;
mod links;
mod messages;
mod rules;
mod spread;
mod storm;

use crate::processes::Processes;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs a part of a rank's process, by its name.
pub(crate) fn run(part: &str) {
    let links = || links::part(part) || failures::part(part) || endings::part(part);
    let known = links() || groups::part(part) || spread::part(part) || rules::part(part);
    assert!(known, "there is no part {part}");
}

/// The folder with the compiled library, under both names.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("stand-in-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("nccl/stand_in/library/lib.rs");
        let library = folder.join("libcuda.so");
        let mut rustc = Command::new("rustc");
        rustc.args([
            "--edition",
            "2024",
            "--crate-type",
            "cdylib",
            "--crate-name",
            "stand_in",
            "-Copt-level=1",
            "-Dwarnings",
        ]);
        let compiled = rustc.arg("-o").arg(&library).arg(source).output().unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        std::os::unix::fs::symlink("libcuda.so", folder.join("libnccl.so")).unwrap();
        folder
    })
}

/// Ranks that run a part over the stand-in.
fn start(ranks: usize, part: &str, more: &[(&str, &str)]) -> Processes {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    let rooms = folder().join(format!("rooms-{}", STARTED.fetch_add(1, Ordering::Relaxed)));
    std::fs::create_dir(&rooms).unwrap();
    let own = [("LD_LIBRARY_PATH", folder().to_str().unwrap()), ("STAND_IN_ROOMS", rooms.to_str().unwrap())];
    Processes::start(ranks, part, &[&own, more].concat())
}
