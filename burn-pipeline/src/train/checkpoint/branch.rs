//! Which checkpoint each one follows. A job that goes back to an earlier checkpoint starts another branch.
//!
//! Every manifest has its serial number and that of the checkpoint that the job had saved or loaded before, so the
//! chain back from any checkpoint is known, whatever the step numbers. If a checkpoint of the chain is gone, step
//! numbers are used, which only grow along a branch.

use super::lock::FolderLock;
use super::manifest::Order;
use super::pretrained::Given;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A job's history of saved and loaded checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Branch {
    /// The locks of the folders that the job has saved into.
    pub(super) locks: Vec<FolderLock>,
    /// The folders of the checkpoints that the job has loaded.
    pub(super) read: BTreeSet<PathBuf>,
    /// The folder and serial number of the checkpoint that the job saved or loaded last.
    pub(in crate::train) last: Option<(PathBuf, u64)>,
    /// What the job got from pretrained weights.
    pub(super) given: Given,
}

impl Branch {
    /// Continues the branch from this checkpoint.
    pub(super) fn goes_on_from(&mut self, folder: &Path, serial: u64) {
        self.last = root_of(folder).map(|root| (root, serial));
    }

    /// Remembers the folder of a checkpoint that was loaded.
    pub(super) fn has_read(&mut self, folder: &Path) {
        self.read.extend(root_of(folder));
    }
}

/// The folder that a checkpoint is in, which may be named by a link or without its own folder.
fn root_of(checkpoint: &Path) -> Option<PathBuf> {
    checkpoint.canonicalize().ok()?.parent().map(Path::to_owned)
}

/// The index of the checkpoint that one follows, among those completed before it.
pub(super) fn came_from(before: &[(Order, String)], of: &Order) -> Option<usize> {
    let serial = of.after?;
    let found = before.iter().position(|(order, _)| order.serial == serial);
    // If that one is gone, take the one before it: steps grow along a branch.
    found.or_else(|| last_below(before, of.progress.steps))
}

/// The index of the last one with fewer steps.
pub(super) fn last_below(of: &[(Order, String)], steps: u64) -> Option<usize> {
    of.iter().rposition(|(order, _)| order.progress.steps < steps)
}
