//! The identity of a stage in plans: its route, and its position in the model.

use derive_more::Into;
use serde::{Deserialize, Serialize};
use std::fmt;

/// One stage of a model, on one of its routes.
///
/// Text form: the index, with a quote before it in the second route (`3`, `'3`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Into, Serialize, Deserialize)]
#[serde(try_from = "(u8, u16)", into = "(u8, u16)")]
pub struct StageId {
    pub(super) route: u8,
    pub(super) index: u16,
}

impl TryFrom<(u8, u16)> for StageId {
    type Error = &'static str;

    fn try_from((route, index): (u8, u16)) -> Result<Self, Self::Error> {
        if route < 2 { Ok(Self { route, index }) } else { Err("a stage's route is 0 or 1") }
    }
}

impl StageId {
    /// The stage `index` of the first route, counted from the model's input.
    ///
    /// # Panics
    /// Panics if `index` is above 65,535. Schedules and parsers return an error for such sizes first.
    pub fn new(index: usize) -> Self {
        Self::in_route(0, index)
    }

    /// The stage `index` of route 0 or 1 (in bidirectional placements, each route is a complete model).
    ///
    /// # Panics
    /// Panics if `index` is above 65,535 or `route` above 1.
    pub fn in_route(route: usize, index: usize) -> Self {
        assert!(route < 2 && index <= u16::MAX as usize, "stage {index} of route {route} is out of range");
        Self { route: route as u8, index: index as u16 }
    }

    /// Position in the model, 0 at its input.
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// The route: 0, or 1 for the second route of a bidirectional placement.
    pub fn route(self) -> usize {
        self.route as usize
    }

    /// The stage whose output this one reads, or `None` for the first.
    pub fn previous(self) -> Option<Self> {
        Some(Self { index: self.index.checked_sub(1)?, ..self })
    }

    /// The stage after this one in a model of `stages` stages, or `None` for the last.
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
        if self.route == 1 {
            f.write_str("'")?;
        }
        self.index.fmt(f)
    }
}

crate::debug_as_text!(StageId);
