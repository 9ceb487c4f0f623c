//! Reads and writes text files.

use crate::failure::Failure;
use std::path::Path;

/// Reads a text file.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| Failure::Input(format!("cannot read {}: {error}", path.display())))
}

/// Reads what a text file stands for. An error names the file.
pub(crate) fn parse<T, E: std::fmt::Display>(path: &Path, of: impl FnOnce(&str) -> Result<T, E>) -> Result<T, Failure> {
    of(&read(path)?).map_err(|error| Failure::Input(format!("{}: {error}", path.display())))
}

/// Writes a text file.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| Failure::Input(format!("cannot write {}: {error}", path.display())))
}
