//! The kind of a layer, and the limit on their number: both are named by layers and by the errors about them.

use serde::{Deserialize, Serialize};

/// The most layers of a model.
pub(super) const MAX_LAYERS: usize = 4096;

/// The kind of a layer: one ASCII letter that the model's author chooses. Upper and lower case differ.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "char", into = "char")]
pub struct LayerKind(pub(super) char);

impl LayerKind {
    /// The letter.
    pub fn letter(self) -> char {
        self.0
    }
}

impl From<LayerKind> for char {
    fn from(kind: LayerKind) -> char {
        kind.0
    }
}

impl std::fmt::Display for LayerKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
