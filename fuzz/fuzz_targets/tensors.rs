//! Any bytes, read as a checkpoint's tensor file with the size and checksum in its manifest.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pipeline_fuzz::{caught, checkpoint};
use std::path::PathBuf;
use std::sync::LazyLock;

static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    caught::allow_in_burn();
    checkpoint::folder("tensors")
});
const SAVED: &[u8] = include_bytes!("../seeds/tensors/saved");

fuzz_target!(|bytes: &[u8]| {
    let entry = |bytes: &[u8]| format!("\"bytes\":{},\"crc32\":{}", bytes.len(), crc32fast::hash(bytes));
    let says = include_str!("../seeds/manifest/saved").replace(&entry(SAVED), &entry(bytes));
    checkpoint::write(&FOLDER, &says, bytes);
    checkpoint::read(&FOLDER);
});
