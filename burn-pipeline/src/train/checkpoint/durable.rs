//! Makes files and folders survive a crash of the machine, with POSIX's `fsync`.

use super::error::CheckpointError;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;

/// Creates a folder and its missing parents durably.
pub(super) fn create_durably(folder: &Path) -> Result<(), CheckpointError> {
    let made: Vec<&Path> = folder.ancestors().take_while(|folder| !folder.is_dir()).collect();
    fs::create_dir_all(folder).map_err(CheckpointError::io("creating", folder))?;
    made.into_iter().try_for_each(synchronise_around)
}

/// Writes a file durably, apart from its entry in the folder.
pub(super) fn write_durably(path: &Path, contents: &[u8]) -> Result<(), CheckpointError> {
    let written = File::create(path).and_then(|mut file| {
        file.write_all(contents)?;
        file.sync_all()
    });
    written.map_err(CheckpointError::io("writing", path))
}

/// Moves a complete file or folder to its place durably.
pub(super) fn appear(partial: &Path, path: &Path) -> Result<(), CheckpointError> {
    fs::rename(partial, path).map_err(CheckpointError::io("writing", path))?;
    synchronise_around(path)
}

/// Makes the entry of a file or folder in its parent folder durable.
fn synchronise_around(path: &Path) -> Result<(), CheckpointError> {
    match path.parent() {
        Some(around) if around.as_os_str().is_empty() => synchronise(Path::new(".")),
        Some(around) => synchronise(around),
        None => Ok(()),
    }
}

/// Makes renames within a folder durable.
pub(super) fn synchronise(folder: &Path) -> Result<(), CheckpointError> {
    // Other systems cannot open folders; there, renames are as durable as the system makes them.
    if cfg!(unix) {
        match File::open(folder).and_then(|folder| folder.sync_all()) {
            // Some network file systems cannot synchronise folders.
            Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => {}
            synchronised => synchronised.map_err(CheckpointError::io("synchronising", folder))?,
        }
    }
    Ok(())
}
