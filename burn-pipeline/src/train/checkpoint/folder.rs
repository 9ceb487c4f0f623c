//! The folder of a job's checkpoints, and how a checkpoint is completed atomically.
//!
//! Guarantees: whenever the process or the machine stops, every folder named `step-…` is complete, `LATEST` is absent or
//! names one of them, and earlier checkpoints are untouched. It relies on POSIX's `rename` and `fsync`. A job that goes
//! back to an earlier checkpoint keeps that one and what it saves from there before what it went back from.
//!
//! 1. Files are written into a folder named `….partial`, each synchronised; the manifest comes last, with a serial
//!    number that is higher than any other's in the folder: checkpoints are in the order in which they were completed.
//! 2. The folder is synchronised, renamed to `step-<number>`, and the folder around it synchronised.
//! 3. `LATEST` is written beside itself, synchronised, and renamed into place.
//! 4. Only then are checkpoints beyond the number to keep removed, the job's own branch last
//!    ([`Checkpoints::by_worth`]). Each is first renamed to `….partial`, so that no half-removed one looks complete.
//!    The next save removes what is left of these (`step-….partial`, `LATEST.partial`) and nothing else. What cannot be
//!    removed is a warning, not an error: the checkpoint is complete.
//!
//! A folder belongs to one job, see `lock`. Where ranks are processes, rank 0's starts and completes a checkpoint, and
//! all write into its folder.

use super::branch::{Branch, came_from, last_below};
use super::error::{CheckpointError, READING};
use super::lock::{FolderLock, Saving};
use super::manifest::{Manifest, Order};
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

    /// Keeps this many, at least one: others are removed once a new one is complete. First those that the job does not
    /// come from: it went back before them, or another run left them here; then its own, the earliest first.
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

    /// The last undamaged checkpoint, every byte compared; damaged ones are skipped with a warning. It starts at the
    /// one that [`Checkpoints::latest`] is, goes back along those that it comes from, and takes another branch's only
    /// if none of these is intact.
    ///
    /// # Errors
    /// If there is no such checkpoint.
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

    /// The folders of all complete checkpoints, in the order in which they were completed.
    ///
    /// # Errors
    /// If the folder cannot be read; one that does not exist holds none.
    pub fn all(&self) -> Result<Vec<PathBuf>, CheckpointError> {
        Ok(self.complete()?.into_iter().map(|complete| self.root.join(complete.name)).collect())
    }

    /// All complete checkpoints, in the order of completion. Those whose manifest cannot be read come first, then those
    /// of versions that wrote no serial number, by their steps.
    fn complete(&self) -> Result<Vec<Complete>, CheckpointError> {
        let names = names(&self.root)?.into_iter().filter(|name| is_checkpoint(name));
        let complete = |name: String| Complete { order: Order::read(&self.root.join(&name)).ok(), name };
        let mut all: Vec<Complete> = names.map(complete).collect();
        all.sort_by_key(|complete| (complete.order.map(|order| (order.serial, order.steps)), numbers(&complete.name)));
        Ok(all)
    }

    /// Complete checkpoints whose manifest can be read: the one with this name last, before it those that it comes
    /// from, and first the others, each in the order of completion.
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

    /// Starts a checkpoint of a job; what earlier processes left half-written is removed.
    pub(super) fn begin(&self, step: u64, job: &mut Branch) -> Result<Staging, CheckpointError> {
        create_durably(&self.root)?;
        let saving = FolderLock::of(&self.root, &mut job.locks)?;
        let names = names(&self.root)?;
        names.iter().filter(|name| is_partial(name)).for_each(|name| remove(&self.root.join(name)));
        // A job that resumed from an earlier step saves some steps a second time.
        let taken = |name: &String| self.root.join(name).exists() || self.partial(name).exists();
        let name = (1..).map(|again| name_of(step, again)).find(|name| !taken(name)).unwrap_or_default();
        let folder = self.partial(&name);
        fs::create_dir(&folder).map_err(CheckpointError::io("creating", &folder))?;
        let after = job.last.as_ref().filter(|(root, _)| root == saving.root()).map(|&(_, serial)| serial);
        Ok(Staging { checkpoints: self.clone(), name, folder, leads: Some((saving, after)) })
    }

    /// Takes part in a checkpoint that another process has started under this name.
    ///
    /// # Errors
    /// If that is no checkpoint's name: what another process says must not lead out of the folder.
    pub(super) fn join(&self, name: String) -> Result<Staging, CheckpointError> {
        if !is_ours(&name) {
            return Err(CheckpointError::elsewhere(0, format!("it named {name:?}, which is no checkpoint's name")));
        }
        Ok(Staging { checkpoints: self.clone(), folder: self.partial(&name), name, leads: None })
    }

    /// Where a checkpoint of this name is written, and where it is removed.
    fn partial(&self, name: &str) -> PathBuf {
        self.root.join(format!("{name}{PARTIAL}"))
    }

    /// Removes all but the number to keep, of which the one just completed is one.
    fn remove_old(&self, complete: &str) {
        let Some(keep) = self.keep else { return };
        let all = self.by_worth(complete).unwrap_or_else(|error| {
            tracing::warn!(%error, "older checkpoints stay");
            Vec::new()
        });
        for folder in &all[..all.len().saturating_sub(keep)] {
            let mut doomed = folder.clone().into_os_string();
            doomed.push(PARTIAL);
            match fs::rename(folder, &doomed) {
                Ok(()) => remove(Path::new(&doomed)),
                Err(error) => tracing::warn!(folder = %folder.display(), %error, "an older checkpoint stays"),
            }
        }
    }
}

/// The name of a complete checkpoint, and its place among the others, if its manifest can be read.
struct Complete {
    name: String,
    order: Option<Order>,
}

/// A checkpoint that is being written; dropped before it is complete, it is removed by the process that started it.
#[derive(Debug)]
pub(super) struct Staging {
    checkpoints: Checkpoints,
    name: String,
    folder: PathBuf,
    /// In the process that started it, what keeps others from saving into the folder, and what it comes from there.
    leads: Option<(Saving, Option<u64>)>,
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
    pub(super) fn commit(self, mut manifest: Manifest, job: &mut Branch) -> Result<PathBuf, CheckpointError> {
        let root = &self.checkpoints.root;
        let complete = root.join(&self.name);
        let Some((_, after)) = &self.leads else { return Ok(complete) };
        let serials = self.checkpoints.complete()?.into_iter().filter_map(|complete| complete.order?.serial);
        (manifest.serial, manifest.after) = (Some(serials.max().unwrap_or_default().saturating_add(1)), *after);
        let serial = manifest.serial;
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

/// Removes what no longer counts; the next save tries again.
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

/// Returns true for what a save leaves behind which did not end. A user's own file may end alike.
fn is_partial(name: &str) -> bool {
    name.strip_suffix(PARTIAL).is_some_and(|name| name == LATEST || is_ours(name))
}

/// Makes a folder, and those around it that are not there, so that a machine that stops keeps them.
fn create_durably(folder: &Path) -> Result<(), CheckpointError> {
    let made: Vec<&Path> = folder.ancestors().take_while(|folder| !folder.is_dir()).collect();
    fs::create_dir_all(folder).map_err(CheckpointError::io("creating", folder))?;
    made.into_iter().try_for_each(synchronise_around)
}

/// Makes the entry of a file or folder in the folder around it durable.
pub(super) fn synchronise_around(path: &Path) -> Result<(), CheckpointError> {
    match path.parent() {
        Some(around) if around.as_os_str().is_empty() => synchronise(Path::new(".")),
        Some(around) => synchronise(around),
        None => Ok(()),
    }
}

/// Makes renames within a folder durable.
fn synchronise(folder: &Path) -> Result<(), CheckpointError> {
    // Other systems cannot open folders; there, renames are as durable as the system makes them.
    if cfg!(unix) {
        match File::open(folder).and_then(|folder| folder.sync_all()) {
            // Some file systems over networks cannot synchronise folders.
            Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => {}
            synchronised => synchronised.map_err(CheckpointError::io("synchronising", folder))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
