//! The link over mock CUDA and NCCL libraries, on a machine without a GPU.
//!
//! The mock (`library/lib.rs`) is compiled here with the standard library alone, and the ranks' processes find it
//! through `LD_LIBRARY_PATH`. It enforces the rules of both libraries and ends a process that breaks one. The link
//! runs on it unchanged, and so do CubeCL's CUDA runtime and its kernels, which the mock interprets.
//!
//! `computing.rs` and `kernels.rs` compute on the mock's processors. The other tests that train compute on the host,
//! and their tensors are moved to the device to be sent (`tests/on_device.rs`).
//!
//! Only a GPU can test the rest: matrix instructions, libdevice's own code and races within a kernel; NCCL's own
//! transports; how CUDA orders events over a context; speed.

mod computing;
mod endings;
mod expert_parallel;
mod failures;
mod groups;
mod kernels;
#[cfg(any())]
#[path = "library/lib.rs"]
mod library;
mod links;
mod messages;
mod rules;
mod storm;

use crate::processes::Processes;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs a part of a rank's process, by name.
pub(crate) fn run(part: &str) {
    let links = || computing::part(part) || links::part(part) || failures::part(part) || endings::part(part);
    let known =
        links() || groups::part(part) || expert_parallel::part(part) || kernels::part(part) || rules::part(part);
    assert!(known, "there is no part {part}");
}

/// A module of LLVM without contents: its magic number, and a block that says only the format's version. CubeCL takes
/// it for CUDA's libdevice. So calls of libdevice's functions stay calls, which the mock computes itself.
const EMPTY_MODULE: [u8; 16] = *b"BC\xC0\xDE\x21\x0C\0\0\x01\0\0\0\x0B\x02\x01\0";

/// The folder with the compiled library, under both names, and with a CUDA toolkit's libdevice.
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
            "-Copt-level=2",
            "-Dwarnings",
        ]);
        let compiled = rustc.arg("-o").arg(&library).arg(source).output().unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        std::os::unix::fs::symlink("libcuda.so", folder.join("libnccl.so")).unwrap();
        let libdevice = folder.join("nvvm/libdevice");
        std::fs::create_dir_all(&libdevice).unwrap();
        std::fs::write(libdevice.join("libdevice.10.bc"), EMPTY_MODULE).unwrap();
        folder
    })
}

/// Starts ranks that run a part over the mock libraries.
fn start(ranks: usize, part: &str, more: &[(&str, &str)]) -> Processes {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    let rooms = folder().join(format!("rooms-{}", STARTED.fetch_add(1, Ordering::Relaxed)));
    std::fs::create_dir(&rooms).unwrap();
    let folder = folder().to_str().unwrap();
    let own = [("LD_LIBRARY_PATH", folder), ("CUDA_PATH", folder), ("STAND_IN_ROOMS", rooms.to_str().unwrap())];
    Processes::start(ranks, part, &[&own, more].concat())
}
