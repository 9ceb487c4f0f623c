//! Which checkpoint comes from which: a job that goes back to an earlier one starts another branch.
//!
//! Every manifest has its serial number and that of the checkpoint that the job had saved or loaded before, so the
//! chain from any checkpoint back is known, whatever the numbers of the steps are. Where a link of it is gone, steps
//! say the rest: they only grow along a branch.

use super::lock::FolderLock;
use super::manifest::Order;
use std::path::{Path, PathBuf};

/// What a job knows of the checkpoints that it saved and loaded.
#[derive(Debug, Default)]
pub(crate) struct Branch {
    /// Of the folders that it has saved into.
    pub(super) locks: Vec<FolderLock>,
    /// The folder and the serial number of the one that it saved or loaded last.
    pub(in crate::train) last: Option<(PathBuf, u64)>,
}

impl Branch {
    /// The job goes on from this checkpoint.
    pub(super) fn goes_on_from(&mut self, folder: &Path, serial: Option<u64>) {
        let root = folder.parent().and_then(|root| root.canonicalize().ok());
        self.last = root.zip(serial);
    }
}

/// The place of the checkpoint that one comes from, among those that were completed before it.
pub(super) fn came_from(before: &[(Order, String)], of: &Order) -> Option<usize> {
    match (of.after, of.serial) {
        // If it is gone, the one before it: steps grow along a branch.
        (Some(serial), _) => {
            let found = before.iter().position(|(order, _)| order.serial == Some(serial));
            found.or_else(|| last_below(before, of.steps))
        }
        (None, Some(_)) => None,
        // Of a version that noted neither.
        (None, None) => last_below(before, of.steps),
    }
}

/// The place of the last one of fewer steps.
pub(super) fn last_below(of: &[(Order, String)], steps: u64) -> Option<usize> {
    of.iter().rposition(|(order, _)| order.steps < steps)
}
