//! The JSON of a model's layers, easy to write by hand.
//!
//! The file lists either every layer (`"layers": [..]`), or one description per kind and the model as a [`Pattern`]
//! of kinds:
//!
//! ```json
//! { "kinds": [ { "kind": "E", "parameters": 8192, "forward": 0.001 },
//!              { "kind": "A", "parameters": 4096, "forward": 0.004, "input": 0.004, "weight": 0.002 } ],
//!   "pattern": "E|A*4" }
//! ```
//!
//! Both may have `"skips": [[0, 4], ..]`: pairs of layers between which a value goes past the next layer; and
//! `"first_trained": 3`, if the layers before that one do not train ([`Layers::train_from`]).
//!
//! Guarantees: layers read from JSON have passed [`Layers::new`]. An unknown field is refused by name. A kind of
//! the pattern that is described twice or not at all is refused.

use super::layer::Layer;
use super::layers::Layers;
use super::partition::Pattern;
use super::partition_error::PartitionError;
use crate::plan::SkipEdge;
use serde::Deserialize;

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct StoredLayers {
    layers: Vec<Layer>,
    kinds: Vec<Layer>,
    pattern: Option<String>,
    skips: Vec<SkipEdge>,
    first_trained: usize,
}

impl Layers {
    /// Reads layers from JSON, with the pattern if the JSON has one.
    ///
    /// # Errors
    /// - Returns [`PartitionError::Json`] if the text is not the JSON of layers.
    /// - [`PartitionError::Pattern`] with the column of a mistake in the pattern.
    /// - [`PartitionError::UnknownKind`] or [`PartitionError::KindTwice`] if a kind is not described exactly once.
    /// - The errors of [`Layers::new`], [`Layers::with_skips`] and [`Layers::train_from`].
    pub fn from_json(text: &str) -> Result<(Self, Option<Pattern>), PartitionError> {
        let form: StoredLayers = serde_json::from_str(text).map_err(|e| PartitionError::Json(e.to_string()))?;
        let (first, skips) = (form.first_trained, form.skips);
        let finished = |layers: Self| layers.with_skips(skips)?.train_from(first);
        match (form.pattern, form.layers.is_empty(), form.kinds.is_empty()) {
            (Some(pattern), true, _) => {
                let pattern: Pattern = pattern.parse()?;
                Ok((finished(Self::of_pattern(&pattern, &form.kinds)?)?, Some(pattern)))
            }
            (None, _, true) => Ok((finished(Self::new(form.layers)?)?, None)),
            _ => Err(PartitionError::Json("give `layers`, or `kinds` and `pattern`, and not both".into())),
        }
    }

    /// Writes the layers as JSON, one entry per layer. Reading it back gives the same layers, to the last bit.
    ///
    /// # Errors
    /// Returns [`PartitionError::Json`]; this does not occur for validated layers.
    pub fn to_json(&self) -> Result<String, PartitionError> {
        let mut form = serde_json::json!({ "layers": self.all() });
        if !self.skips().is_empty() {
            form["skips"] = serde_json::json!(self.skips());
        }
        if self.first_trained() > 0 {
            form["first_trained"] = self.first_trained().into();
        }
        serde_json::to_string_pretty(&form).map_err(|e| PartitionError::Json(e.to_string()))
    }

    /// The layers of a pattern, each as described for its kind.
    fn of_pattern(pattern: &Pattern, kinds: &[Layer]) -> Result<Self, PartitionError> {
        for (index, layer) in kinds.iter().enumerate() {
            if kinds[..index].iter().any(|before| before.kind == layer.kind) {
                return Err(PartitionError::KindTwice { kind: layer.kind });
            }
        }
        let describe = |&kind: &char| {
            kinds.iter().find(|layer| layer.kind == kind).cloned().ok_or(PartitionError::UnknownKind { kind })
        };
        Self::new(pattern.kinds().iter().map(describe).collect::<Result<_, _>>()?)
    }
}
