//! Any text, read as the content of a checkpoint's manifest with the right checksum.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pipeline_fuzz::{caught, checkpoint};
use std::path::PathBuf;
use std::sync::LazyLock;

static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    caught::allow_in_burn();
    checkpoint::folder("manifest")
});

fuzz_target!(|says: &str| {
    checkpoint::write(&FOLDER, says, include_bytes!("../seeds/tensors/saved"));
    checkpoint::read(&FOLDER);
});
