//! The skip edge: a value passed from one stage to a later stage that is not the next.

use derive_more::{Display, From, Into};
use serde::{Deserialize, Serialize};

/// A skip edge, from a stage to a later stage that is not the next, on every route.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Display, From, Into, Serialize, Deserialize)]
#[display("{from} -> {to}")]
#[serde(from = "(usize, usize)", into = "(usize, usize)")]
pub struct SkipEdge {
    /// The stage that computes the value.
    pub from: usize,
    /// The stage that reads it.
    pub to: usize,
}
