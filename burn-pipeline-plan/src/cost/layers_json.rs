//! The stored form of a model's layers, as JSON that a person can write.
//!
//! Either every layer, or one description a kind and the model as a [`Pattern`] of kinds:
//!
//! ```json
//! { "kinds": [ { "kind": "E", "parameters": 8192, "forward": 0.001 },
//!              { "kind": "A", "parameters": 4096, "forward": 0.004, "input": 0.004, "weight": 0.002 } ],
//!   "pattern": "E|A*4" }
//! ```
//!
//! Either form may have `"skips": [[0, 4], ..]`: values that a layer hands past the next one, of its `skip_bytes`.
//!
//! Guarantees: what is read went through [`Layers::new`]; a field that is not known is refused by name; a kind of the
//! pattern that is not described, or described twice, is refused.

use super::layer::{Layer, LayerKind, Layers};
use super::partition::{PartitionError, Pattern};
use crate::plan::SkipEdge;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LayersForm {
    #[serde(default)]
    layers: Vec<Layer>,
    #[serde(default)]
    kinds: Vec<Layer>,
    pattern: Option<String>,
    #[serde(default)]
    skips: Vec<SkipEdge>,
}

impl Layers {
    /// Reads the JSON form; beside the layers comes the pattern, where the form has one.
    ///
    /// # Errors
    /// [`PartitionError::Json`] where the text is not that form, [`PartitionError::Pattern`] with the column,
    /// [`PartitionError::UnknownKind`] and [`PartitionError::KindTwice`], or what [`Layers::new`] refuses.
    pub fn from_json(text: &str) -> Result<(Self, Option<Pattern>), PartitionError> {
        let form: LayersForm = serde_json::from_str(text).map_err(|e| PartitionError::Json(e.to_string()))?;
        match (form.pattern, form.layers.is_empty(), form.kinds.is_empty()) {
            (Some(pattern), true, _) => {
                let pattern: Pattern = pattern.parse()?;
                Ok((Self::of_pattern(&pattern, &form.kinds)?.with_skips(form.skips)?, Some(pattern)))
            }
            (None, _, true) => Ok((Self::new(form.layers)?.with_skips(form.skips)?, None)),
            _ => Err(PartitionError::Json("give `layers`, or `kinds` and `pattern`, and not both".into())),
        }
    }

    /// Writes the JSON form, every layer for itself; reading it gives the same layers, numbers up to their last bit.
    ///
    /// # Errors
    /// [`PartitionError::Json`], which no layers that were checked give.
    pub fn to_json(&self) -> Result<String, PartitionError> {
        let form = match self.skips() {
            [] => serde_json::json!({ "layers": self.all() }),
            skips => serde_json::json!({ "layers": self.all(), "skips": skips }),
        };
        serde_json::to_string_pretty(&form).map_err(|e| PartitionError::Json(e.to_string()))
    }

    /// The layers that a pattern lists, each described by its kind.
    ///
    /// # Errors
    /// As [`Layers::from_json`].
    pub fn of_pattern(pattern: &Pattern, kinds: &[Layer]) -> Result<Self, PartitionError> {
        for (index, layer) in kinds.iter().enumerate() {
            if kinds[..index].iter().any(|before| before.kind == layer.kind) {
                return Err(PartitionError::KindTwice { kind: layer.kind });
            }
        }
        let describe = |&kind: &LayerKind| {
            kinds.iter().find(|layer| layer.kind == kind).cloned().ok_or(PartitionError::UnknownKind { kind })
        };
        Self::new(pattern.kinds().iter().map(describe).collect::<Result<_, _>>()?)
    }
}
