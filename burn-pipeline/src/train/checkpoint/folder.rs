//! The folder of a job's checkpoints, and how a checkpoint is completed atomically.
//!
//! Guarantees: if the process or the machine stops at any time, every folder named `step-…` is complete, `LATEST` is
//! absent or names one of them, and earlier checkpoints are unchanged. This relies on POSIX's `rename` and `fsync`.
//! When a job goes back to an earlier checkpoint, cleanup keeps that checkpoint and its successors longer than the
//! abandoned ones.
//!
//! 1. Files are written into a folder named `….partial`, each synchronised. The manifest comes last, with a serial
//!    number higher than any other's in the folder: serial numbers give the order of completion.
//! 2. The folder is synchronised and renamed to `step-<number>`, and its parent folder is synchronised.
//! 3. The new `LATEST` is written next to the old one, synchronised, and renamed into place.
//! 4. Then checkpoints beyond the number to keep are removed, the job's own branch last ([`Checkpoints::by_worth`]).
//!    Each is first renamed to `….partial`, so that no half-removed one looks complete. The next save removes leftovers
//!    of these (`step-….partial`, `LATEST.partial`) and nothing else. A failed removal is a warning, not an error,
//!    because the checkpoint is complete.
//!
//! A folder belongs to one job, see `lock`. When ranks are processes, rank 0 starts and completes a checkpoint, and all
//! write into its folder.

use super::branch::{Branch, came_from, last_below};
use super::durable::{appear, create_durably, synchronise, write_durably};
use super::error::{CheckpointError, READING};
use super::lock::{FolderLock, Saving};
use super::manifest::{BaseEntry, Manifest, Order};
use super::stored::Checkpoint;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const LATEST: &str = "LATEST";
const PARTIAL: &str = ".partial";

/// What holds the values that saved checkpoints leave out.
#[derive(Clone, Debug)]
pub(super) enum Base {
    Checkpoint(Arc<Checkpoint>),
    /// What the pipeline got by `load_pretrained`.
    Pretrained,
}

/// The folder of a job's checkpoints.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    pub(super) root: PathBuf,
    keep: Option<usize>,
    pub(super) base: Option<Base>,
}

impl Checkpoints {
    /// The checkpoints in this folder, which is created when first needed. All are kept.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), keep: None, base: None }
    }

    /// Keeps this many checkpoints, at least one, and removes others once a new one is complete: first those that are
    /// not on the job's branch (it went back before them, or another run left them here), then those of its branch, the
    /// earliest first.
    pub fn keep(mut self, checkpoints: usize) -> Self {
        self.keep = Some(checkpoints.max(1));
        self
    }

    /// Opens the checkpoint that was completed last.
    ///
    /// # Errors
    /// Returns [`CheckpointError`] if there is no checkpoint, or its manifest is damaged. Its files are read only when
    /// it is loaded.
    pub fn latest(&self) -> Result<Checkpoint, CheckpointError> {
        let path = self.root.join(LATEST);
        match fs::read_to_string(&path) {
            Ok(name) if is_checkpoint(name.trim()) => Checkpoint::open(self.root.join(name.trim())),
            Ok(_) => Err(CheckpointError::damaged(&path, "it names no checkpoint")),
            // The job stopped between steps 2 and 3 of its first save.
            Err(error) if error.kind() == ErrorKind::NotFound => match self.all()?.pop() {
                Some(folder) => Checkpoint::open(folder),
                None => Err(CheckpointError::None { root: self.root.clone() }),
            },
            Err(error) => Err(CheckpointError::io(READING, &path)(error)),
        }
    }

    /// Opens the last undamaged checkpoint, comparing every byte; damaged ones are skipped with a warning. It starts at
    /// [`Checkpoints::latest`], goes back along its branch, and uses another branch only if none of these is intact.
    ///
    /// # Errors
    /// Returns [`CheckpointError`] if there is no such checkpoint.
    pub fn latest_intact(&self) -> Result<Checkpoint, CheckpointError> {
        let name = fs::read_to_string(self.root.join(LATEST)).unwrap_or_default();
        for folder in self.by_worth(name.trim())?.into_iter().rev() {
            match Checkpoint::open(&folder).and_then(|checkpoint| checkpoint.verify().map(|()| checkpoint)) {
                Ok(checkpoint) => return Ok(checkpoint),
                Err(error) => tracing::warn!(folder = %folder.display(), %error, "checkpoint skipped"),
            }
        }
        Err(CheckpointError::None { root: self.root.clone() })
    }

    /// Returns the folders of all complete checkpoints, in order of completion; none if the folder does not exist.
    ///
    /// # Errors
    /// Returns [`CheckpointError`] if the folder cannot be read.
    pub fn all(&self) -> Result<Vec<PathBuf>, CheckpointError> {
        Ok(self.complete()?.into_iter().map(|complete| self.root.join(complete.name)).collect())
    }

    /// All complete checkpoints, in order of completion; those with an unreadable manifest come first.
    fn complete(&self) -> Result<Vec<Complete>, CheckpointError> {
        let names = names(&self.root)?.into_iter().filter(|name| is_checkpoint(name));
        let complete = |name: String| Complete { order: Order::read(&self.root.join(&name)).ok(), name };
        let mut all: Vec<Complete> = names.map(complete).collect();
        all.sort_by_key(|complete| (complete.order.map(|order| order.serial), numbers(&complete.name)));
        Ok(all)
    }

    /// Complete checkpoints with a readable manifest: the one with this name last, preceded by its branch; before
    /// these, all others; each part in order of completion.
    fn by_worth(&self, name: &str) -> Result<Vec<PathBuf>, CheckpointError> {
        let readable = |complete: Complete| Some((complete.order?, complete.name));
        let all: Vec<(Order, String)> = self.complete()?.into_iter().filter_map(readable).collect();
        let head = all.iter().position(|(_, known)| known == name);
        let mut next = head.or_else(|| last_below(&all, numbers(name).map_or(u64::MAX, |(steps, _)| steps)));
        let mut branch = Vec::new();
        while let Some(place) = next {
            branch.push(place);
            next = came_from(&all[..place], &all[place].0);
        }
        let others = (0..all.len()).filter(|place| !branch.contains(place));
        Ok(others.chain(branch.iter().rev().copied()).map(|place| self.root.join(&all[place].1)).collect())
    }

    /// Starts a checkpoint of a job, and removes half-written ones of earlier processes.
    pub(super) fn begin(&self, step: u64, job: &mut Branch) -> Result<Staging, CheckpointError> {
        create_durably(&self.root)?;
        let base = self.base_entry(&job.given)?;
        let saving = FolderLock::of(&self.root, &mut job.locks, &job.read)?;
        let names = names(&self.root)?;
        names.iter().filter(|name| is_partial(name)).for_each(|name| remove(&self.root.join(name)));
        // A job that resumed from an earlier step saves some steps a second time.
        let taken = |name: &String| self.root.join(name).exists() || self.partial(name).exists();
        let name = (1..).map(|again| name_of(step, again)).find(|name| !taken(name)).unwrap_or_default();
        let folder = self.partial(&name);
        fs::create_dir(&folder).map_err(CheckpointError::io("creating", &folder))?;
        let after = job.last.as_ref().filter(|(root, _)| *root == saving.root).map(|&(_, serial)| serial);
        Ok(Staging { checkpoints: self.clone(), name, folder, leads: Some(Leads { _saving: saving, after, base }) })
    }

    /// Joins a checkpoint that another process has started under this name, which must not lead out of the folder.
    pub(super) fn join(&self, name: String) -> Result<Staging, CheckpointError> {
        if !is_ours(&name) {
            return Err(CheckpointError::elsewhere(0, format!("it named {name:?}, which is no checkpoint's name")));
        }
        Ok(Staging { checkpoints: self.clone(), folder: self.partial(&name), name, leads: None })
    }

    /// The path at which a checkpoint of this name is written, and removed.
    fn partial(&self, name: &str) -> PathBuf {
        self.root.join(format!("{name}{PARTIAL}"))
    }

    /// Removes all but the number to keep, which includes the checkpoint just completed.
    fn remove_old(&self, complete: &str) {
        let Some(keep) = self.keep else { return };
        let all = self.by_worth(complete).unwrap_or_else(|error| {
            tracing::warn!(%error, "older checkpoints stay");
            Vec::new()
        });
        for folder in &all[..all.len().saturating_sub(keep)] {
            let doomed = folder.with_added_extension("partial");
            match fs::rename(folder, &doomed) {
                Ok(()) => remove(&doomed),
                Err(error) => tracing::warn!(folder = %folder.display(), %error, "an older checkpoint stays"),
            }
        }
    }
}

/// The name of a complete checkpoint, and its place in the order, if its manifest can be read.
struct Complete {
    name: String,
    order: Option<Order>,
}

/// A checkpoint being written. If dropped before it is complete, the process that started it removes it.
#[derive(Debug)]
pub(super) struct Staging {
    checkpoints: Checkpoints,
    /// Its name once complete.
    pub(super) name: String,
    /// The folder into which ranks write their files.
    pub(super) folder: PathBuf,
    /// In the process that started it.
    leads: Option<Leads>,
}

/// What the process knows that started a checkpoint.
#[derive(Debug)]
struct Leads {
    /// Keeps others from saving into the folder.
    _saving: Saving,
    /// The serial number of the previous checkpoint there.
    after: Option<u64>,
    base: Option<BaseEntry>,
}

impl Staging {
    /// Completes the checkpoint: steps 1 to 4 of the header. If another process started it, that process does this.
    /// Returns its folder.
    pub(super) fn commit(self, mut manifest: Manifest, job: &mut Branch) -> Result<PathBuf, CheckpointError> {
        let root = &self.checkpoints.root;
        let complete = root.join(&self.name);
        let Some(Leads { after, base, .. }) = &self.leads else { return Ok(complete) };
        manifest.base.clone_from(base);
        let serials = self.checkpoints.complete()?.into_iter().filter_map(|complete| Some(complete.order?.serial));
        let serial = serials.max().unwrap_or_default().saturating_add(1);
        (manifest.serial, manifest.after) = (serial, *after);
        manifest.write(&self.folder)?;
        synchronise(&self.folder)?;
        fs::rename(&self.folder, &complete).map_err(CheckpointError::io("completing", &complete))?;
        synchronise(root)?;
        let (latest, beside) = (root.join(LATEST), root.join(format!("{LATEST}{PARTIAL}")));
        write_durably(&beside, self.name.as_bytes())?;
        appear(&beside, &latest)?;
        job.goes_on_from(&complete, serial);
        self.checkpoints.remove_old(&self.name);
        Ok(complete)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.leads.is_some() {
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

/// Removes a leftover; on failure the next save tries again.
fn remove(path: &Path) {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    if let Err(error) = removed {
        tracing::warn!(path = %path.display(), %error, "what is left of an earlier checkpoint cannot be removed");
    }
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

/// Returns true if a save gives this name to a checkpoint.
fn is_ours(name: &str) -> bool {
    numbers(name).is_some_and(|(step, again)| name == name_of(step, again))
}

/// Returns true for the leftovers of an interrupted save. A user's own file may have the same ending.
fn is_partial(name: &str) -> bool {
    name.strip_suffix(PARTIAL).is_some_and(|name| name == LATEST || is_ours(name))
}

#[cfg(test)]
mod tests;
