//! Reads and writes text files.

use crate::failure::Failure;
use std::path::Path;

/// Reads a text file.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| Failure::Input(format!("cannot read {}: {error}", path.display())))
}

/// Writes a text file.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| Failure::Input(format!("cannot write {}: {error}", path.display())))
}
