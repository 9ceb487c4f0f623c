//! The folder of the mock libraries, and how a process finds them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A module of LLVM without contents: its magic number, and a block that says only the format's version. CubeCL takes
/// it for CUDA's libdevice. So calls of libdevice's functions stay calls, which the mock computes itself.
const EMPTY_MODULE: [u8; 16] = *b"BC\xC0\xDE\x21\x0C\0\0\x01\0\0\0\x0B\x02\x01\0";

/// The folder with the compiled library, under both names, and with a CUDA toolkit's libdevice.
pub(crate) fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let all = Path::new(env!("CARGO_TARGET_TMPDIR"));
        remove_old(all);
        let folder = all.join(format!("stand-in-{}", std::process::id()));
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

/// Removes the folders of processes that have ended, where the system lists its processes.
fn remove_old(all: &Path) {
    let lists = Path::new("/proc/self").exists();
    for found in std::fs::read_dir(all).unwrap().flatten().filter(|_| lists) {
        let name = found.file_name().into_string().unwrap_or_default();
        let ended = name.strip_prefix("stand-in-").is_some_and(|id| !Path::new("/proc").join(id).exists());
        if ended {
            // Another process may remove it at the same time.
            let _ = std::fs::remove_dir_all(found.path());
        }
    }
}

/// The variables of a process that finds the mock libraries. The libraries of its ranks meet in `rooms`.
pub(crate) fn variables<'a>(folder: &'a Path, rooms: &'a Path) -> [(&'static str, &'a str); 3] {
    let [folder, rooms] = [folder, rooms].map(|path| path.to_str().unwrap());
    [("LD_LIBRARY_PATH", folder), ("CUDA_PATH", folder), ("STAND_IN_ROOMS", rooms)]
}
