//! The identity of a stage in plans: its position in the model, and the replica of the model that it belongs to.

use serde::{Deserialize, Serialize};
use std::fmt;

/// One stage of a model, in one of its replicas.
///
/// Text form: the index, with a quote before it in the second replica (`3`, `'3`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "(u8, u16)", into = "(u8, u16)")]
pub struct StageId {
    pub(super) replica: u8,
    pub(super) index: u16,
}

impl From<StageId> for (u8, u16) {
    fn from(stage: StageId) -> Self {
        (stage.replica, stage.index)
    }
}

impl TryFrom<(u8, u16)> for StageId {
    type Error = &'static str;

    fn try_from((replica, index): (u8, u16)) -> Result<Self, Self::Error> {
        if replica < 2 { Ok(Self { replica, index }) } else { Err("a stage's replica is 0 or 1") }
    }
}

impl StageId {
    /// The stage `index` of the first replica, counted from the model's input.
    ///
    /// # Panics
    /// If `index` is above 65,535. Schedules and parsers return an error for such sizes first.
    pub fn new(index: usize) -> Self {
        Self::in_replica(0, index)
    }

    /// The stage `index` of replica 0 or 1 (bidirectional placements hold the model twice).
    ///
    /// # Panics
    /// If `index` is above 65,535 or `replica` above 1.
    pub fn in_replica(replica: usize, index: usize) -> Self {
        assert!(replica < 2 && index <= u16::MAX as usize, "stage {index} of replica {replica} is out of range");
        Self { replica: replica as u8, index: index as u16 }
    }

    /// Position in the model, 0 at its input.
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// Replica of the model (0, or 1 in the second route of a bidirectional placement).
    pub fn replica(self) -> usize {
        self.replica as usize
    }

    /// The stage whose output this one reads, or `None` for the first.
    pub fn previous(self) -> Option<Self> {
        Some(Self { index: self.index.checked_sub(1)?, ..self })
    }

    /// The stage that follows in a model of `stages` stages, or `None` for the last.
    pub fn next(self, stages: usize) -> Option<Self> {
        let index = self.index.checked_add(1)?;
        ((index as usize) < stages).then_some(Self { index, ..self })
    }
}

impl From<usize> for StageId {
    fn from(index: usize) -> Self {
        Self::new(index)
    }
}

impl fmt::Display for StageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.replica == 1 {
            f.write_str("'")?;
        }
        self.index.fmt(f)
    }
}

impl fmt::Debug for StageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
