//! A lock, so that only one job at a time saves into a folder.
//!
//! Guarantees: two saves never run in a folder at once, and a job never removes checkpoints of another running job: its
//! save is refused with an error that names the process that has the folder.
//!
//! 1. A pipeline's first save takes an exclusive lock of the file `LOCK` in the folder, and holds it until the pipeline
//!    is dropped. The system releases it when the process ends, however it ends.
//! 2. A pipeline that has loaded a checkpoint from a folder which another pipeline of its process has locked shares
//!    the locks of that one, and no others, because a process that resumes may still hold the pipeline that it resumes
//!    from. Only one saves at a time.
//! 3. On a file system without locks, it warns and continues.

use super::error::CheckpointError;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The file's name within the folder.
const LOCK: &str = "LOCK";

/// The folders that this process has locked.
static LOCKED: Mutex<BTreeMap<PathBuf, Locked>> = Mutex::new(BTreeMap::new());

/// The number of the next pipeline that locks a folder.
static NEXT: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
struct Locked {
    /// Locked until it is closed.
    _file: File,
    /// The pipelines that have saved into the folder.
    holders: BTreeSet<u64>,
    /// True if one of them is saving now.
    saving: bool,
}

/// A pipeline's share of a folder's lock.
#[derive(Debug)]
pub(super) struct FolderLock {
    root: PathBuf,
    /// The pipeline's number.
    pipeline: u64,
}

/// A guard: while it exists, no other pipeline of this process saves into the folder.
#[derive(Debug)]
pub(super) struct Saving {
    /// The folder, as the system names it.
    pub(super) root: PathBuf,
}

impl FolderLock {
    /// Starts a save into a folder, and adds the folder's lock to the pipeline's own if it is new. `read` are the
    /// folders of the checkpoints that the pipeline has loaded.
    pub(super) fn of(root: &Path, own: &mut Vec<Self>, read: &BTreeSet<PathBuf>) -> Result<Saving, CheckpointError> {
        let root = root.canonicalize().map_err(CheckpointError::io("locking", root))?;
        let mut locked = LOCKED.lock();
        let shares = own.iter().any(|own| own.root == root) || read.iter().any(|from| share(&locked, from, &root));
        let lock = match locked.entry(root.clone()) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(new) => {
                new.insert(Locked { _file: lock(&root)?, holders: BTreeSet::new(), saving: false })
            }
        };
        if lock.saving {
            let by = "another pipeline of this process, which is saving now".to_owned();
            return Err(CheckpointError::InUse { root, by });
        }
        if !lock.holders.is_empty() && !shares {
            let by = "another pipeline of this process, none of whose checkpoints were loaded,".to_owned();
            return Err(CheckpointError::InUse { root, by });
        }
        lock.saving = true;
        if !own.iter().any(|own| own.root == root) {
            let pipeline = own.first().map_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed), |own| own.pipeline);
            lock.holders.insert(pipeline);
            own.push(Self { root: root.clone(), pipeline });
        }
        Ok(Saving { root })
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        let mut locked = LOCKED.lock();
        let Some(lock) = locked.get_mut(&self.root) else { return };
        lock.holders.remove(&self.pipeline);
        if lock.holders.is_empty() {
            locked.remove(&self.root);
        }
    }
}

impl Drop for Saving {
    fn drop(&mut self) {
        if let Some(lock) = LOCKED.lock().get_mut(&self.root) {
            lock.saving = false;
        }
    }
}

/// Returns true if one pipeline holds the locks of both folders.
fn share(locked: &BTreeMap<PathBuf, Locked>, one: &Path, other: &Path) -> bool {
    let holders = |folder: &Path| locked.get(folder).map(|lock| &lock.holders);
    holders(one).zip(holders(other)).is_some_and(|(one, other)| !one.is_disjoint(other))
}

/// Locks a folder's file, and writes this process's id into it, for the error message of other processes.
fn lock(root: &Path) -> Result<File, CheckpointError> {
    let path = root.join(LOCK);
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = opened.map_err(CheckpointError::io("locking", &path))?;
    match file.try_lock() {
        Ok(()) => {
            // Without the id, the error message only says less.
            let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
        }
        Err(TryLockError::WouldBlock) => {
            let number = std::fs::read_to_string(&path).unwrap_or_default();
            return Err(CheckpointError::InUse { root: root.to_owned(), by: format!("process {number}") });
        }
        Err(TryLockError::Error(error)) => {
            tracing::warn!(
                path = %path.display(), %error, "this file system has no locks: make sure that no other job saves here"
            );
        }
    }
    Ok(file)
}
