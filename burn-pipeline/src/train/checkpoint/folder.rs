//! The folder of a job's checkpoints, and how a checkpoint is completed atomically.
//!
//! Guarantees: whenever the process or the machine stops, every folder named `step-…` is complete, `LATEST` is absent or
//! names one of them, and earlier checkpoints are untouched. It relies on POSIX's `rename` and `fsync`.
//!
//! 1. Files are written into a folder named `….partial`, each synchronised; the manifest comes last.
//! 2. The folder is synchronised, renamed to `step-<number>`, and the folder around it synchronised.
//! 3. `LATEST` is written beside itself, synchronised, and renamed into place.
//! 4. Only then are older checkpoints beyond the number to keep removed: each is first renamed to `….partial`, so that
//!    no half-removed one looks complete. The next save removes what is left of these (`step-….partial`, `LATEST.partial`)
//!    and nothing else, so a folder belongs to one job.
//!
//! Where ranks are processes, rank 0's starts and completes a checkpoint, and all write into its folder.

use super::error::{CheckpointError, READING};
use super::manifest::Manifest;
use super::stored::Checkpoint;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

const LATEST: &str = "LATEST";
const PARTIAL: &str = ".partial";

/// A folder of checkpoints, one job's.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    root: PathBuf,
    keep: Option<usize>,
}

impl Checkpoints {
    /// The checkpoints in this folder, which is made when first needed. All are kept.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), keep: None }
    }

    /// Keeps this many, at least one: older ones are removed once a new one is complete.
    pub fn keep(mut self, checkpoints: usize) -> Self {
        self.keep = Some(checkpoints.max(1));
        self
    }

    /// The checkpoint that was completed last.
    ///
    /// # Errors
    /// If there is no checkpoint, or its manifest is damaged; its files are read when it is loaded.
    pub fn latest(&self) -> Result<Checkpoint, CheckpointError> {
        let path = self.root.join(LATEST);
        match fs::read_to_string(&path) {
            Ok(name) if is_checkpoint(name.trim()) => Checkpoint::open(self.root.join(name.trim())),
            Ok(_) => Err(CheckpointError::damaged(&path, "it names no checkpoint")),
            // A job that stopped between steps 2 and 3 of its first save.
            Err(error) if error.kind() == ErrorKind::NotFound => match self.all()?.pop() {
                Some(folder) => Checkpoint::open(folder),
                None => Err(CheckpointError::None { root: self.root.clone() }),
            },
            Err(error) => Err(CheckpointError::io(READING, &path)(error)),
        }
    }

    /// The last undamaged checkpoint, every byte compared; damaged ones are skipped with a warning.
    ///
    /// # Errors
    /// If there is no such checkpoint.
    pub fn latest_intact(&self) -> Result<Checkpoint, CheckpointError> {
        for folder in self.all()?.into_iter().rev() {
            match Checkpoint::open(&folder).and_then(|checkpoint| checkpoint.verify().map(|()| checkpoint)) {
                Ok(checkpoint) => return Ok(checkpoint),
                Err(error) => tracing::warn!(folder = %folder.display(), %error, "checkpoint skipped"),
            }
        }
        Err(CheckpointError::None { root: self.root.clone() })
    }

    /// The folders of all complete checkpoints, in the order of their steps.
    ///
    /// # Errors
    /// If the folder cannot be read; one that does not exist holds none.
    pub fn all(&self) -> Result<Vec<PathBuf>, CheckpointError> {
        let names = names(&self.root)?;
        let mut found: Vec<(u64, u64, PathBuf)> = names
            .iter()
            .filter_map(|name| numbers(name).map(|(step, again)| (step, again, self.root.join(name))))
            .collect();
        found.sort();
        Ok(found.into_iter().map(|(_, _, path)| path).collect())
    }

    /// Starts a checkpoint; what earlier processes left half-written is removed.
    pub(super) fn begin(&self, step: u64) -> Result<Staging, CheckpointError> {
        fs::create_dir_all(&self.root).map_err(CheckpointError::io("creating", &self.root))?;
        for name in names(&self.root)?.iter().filter(|name| is_partial(name)) {
            remove(&self.root.join(name))?;
        }
        // A job that resumed from an earlier step saves some steps a second time.
        let taken = |name: &String| self.root.join(name).exists();
        let name = (1..).map(|again| name_of(step, again)).find(|name| !taken(name)).unwrap_or_default();
        let staging = self.staging(name, true);
        fs::create_dir(&staging.folder).map_err(CheckpointError::io("creating", &staging.folder))?;
        Ok(staging)
    }

    /// Takes part in a checkpoint that another process has started under this name.
    pub(super) fn join(&self, name: String) -> Staging {
        self.staging(name, false)
    }

    fn staging(&self, name: String, leads: bool) -> Staging {
        let folder = self.root.join(format!("{name}{PARTIAL}"));
        Staging { checkpoints: self.clone(), name, folder, leads }
    }

    /// Removes all but the newest ones and the one just completed, which need not be of the latest step.
    fn remove_old(&self, complete: &Path) -> Result<(), CheckpointError> {
        let Some(keep) = self.keep else { return Ok(()) };
        let others: Vec<PathBuf> = self.all()?.into_iter().filter(|folder| folder != complete).collect();
        for folder in &others[..(others.len() + 1).saturating_sub(keep)] {
            let mut doomed = folder.clone().into_os_string();
            doomed.push(PARTIAL);
            fs::rename(folder, &doomed).map_err(CheckpointError::io("removing", folder))?;
            remove(Path::new(&doomed))?;
        }
        Ok(())
    }
}

/// A checkpoint that is being written; dropped before it is complete, it is removed by the process that started it.
#[derive(Debug)]
pub(super) struct Staging {
    checkpoints: Checkpoints,
    name: String,
    folder: PathBuf,
    leads: bool,
}

impl Staging {
    /// Where ranks write their files.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its name once it is complete.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Makes the checkpoint complete: steps 1 to 4 of the header; where another process started it, that process does.
    /// Returns its folder.
    pub(super) fn commit(self, manifest: Manifest) -> Result<PathBuf, CheckpointError> {
        let root = &self.checkpoints.root;
        let complete = root.join(&self.name);
        if !self.leads {
            return Ok(complete);
        }
        manifest.write(&self.folder)?;
        synchronise(&self.folder)?;
        fs::rename(&self.folder, &complete).map_err(CheckpointError::io("completing", &complete))?;
        synchronise(root)?;
        let (latest, beside) = (root.join(LATEST), root.join(format!("{LATEST}{PARTIAL}")));
        let named = File::create(&beside).and_then(|mut file| {
            file.write_all(self.name.as_bytes())?;
            file.sync_all()
        });
        named.map_err(CheckpointError::io("writing", &beside))?;
        fs::rename(&beside, &latest).map_err(CheckpointError::io("writing", &latest))?;
        synchronise(root)?;
        self.checkpoints.remove_old(&complete)?;
        Ok(complete)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.leads {
            // Once it was renamed, there is nothing left to remove.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

fn names(root: &Path) -> Result<Vec<String>, CheckpointError> {
    let entries = match fs::read_dir(root) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(CheckpointError::io(READING, root))?,
    };
    let names = entries.map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()));
    names.collect::<Result<_, _>>().map_err(CheckpointError::io(READING, root))
}

fn remove(path: &Path) -> Result<(), CheckpointError> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.map_err(CheckpointError::io("removing", path))
}

fn name_of(step: u64, again: u64) -> String {
    if again == 1 { format!("step-{step:08}") } else { format!("step-{step:08}-{again}") }
}

/// The step in a checkpoint's name, and its number among the checkpoints of that step.
fn numbers(name: &str) -> Option<(u64, u64)> {
    let (step, again) = match name.strip_prefix("step-")?.split_once('-') {
        Some((step, again)) => (step, again.parse().ok()?),
        None => (name.strip_prefix("step-")?, 1),
    };
    Some((step.parse().ok()?, again))
}

fn is_checkpoint(name: &str) -> bool {
    numbers(name).is_some()
}

/// Is it something that a save leaves behind which did not end? A user's own file may end alike.
fn is_partial(name: &str) -> bool {
    let is_ours =
        |name: &str| name == LATEST || numbers(name).is_some_and(|(step, again)| name == name_of(step, again));
    name.strip_suffix(PARTIAL).is_some_and(is_ours)
}

/// Makes renames within a folder durable.
fn synchronise(folder: &Path) -> Result<(), CheckpointError> {
    // Other systems cannot open folders; there, renames are as durable as the system makes them.
    if cfg!(unix) {
        let opened = File::open(folder).and_then(|folder| folder.sync_all());
        opened.map_err(CheckpointError::io("synchronising", folder))?;
    }
    Ok(())
}
