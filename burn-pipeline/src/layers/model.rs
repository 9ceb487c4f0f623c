//! A model as a list of layers, with their types hidden.

use super::chain::Chain;
use super::context::LayerGroups;
use super::error::LayersError;
use super::part::{LossOf, boxed};
use super::wiring::{Described, Value, Wiring, edges, pair};
use crate::stage::StageBox;
use burn::tensor::Device;
use burn_pipeline_plan::plan::SkipEdge;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// A model as a list of layers ([`Sequential`](super::Sequential)), for [`Builder::layers`](crate::Builder::layers).
#[derive(Clone)]
pub struct Model {
    make: Make,
    layers: Arc<[Described]>,
    values: Arc<Result<Vec<Value>, LayersError>>,
    text: String,
    recomputed: bool,
}

type Make = Arc<dyn Fn(&Range<usize>, bool, Arc<Wiring>, &Device, &LayerGroups) -> StageBox + Send + Sync>;

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Model").field(&self.text).finish()
    }
}

impl Model {
    pub(super) fn new<C: Chain>(
        chain: C,
        layers: Vec<Described>,
        entries: Vec<(String, Option<usize>)>,
        seed: u64,
        loss: Option<LossOf<C::Output>>,
    ) -> Self {
        let values = named_once(&entries).and_then(|()| pair(&layers));
        let repeated = |(name, times): &(String, Option<usize>)| match times {
            None => name.clone(),
            Some(times) => format!("{times} {name}"),
        };
        let text = format!("{}, seed {seed}", entries.iter().map(repeated).collect::<Vec<_>>().join(", "));
        let make = move |held: &Range<usize>, is_last, wiring, device: &Device, groups: &LayerGroups| {
            boxed(chain.make(held, device, groups, seed), wiring, loss.as_ref().filter(|_| is_last))
        };
        Self { make: Arc::new(make), layers: layers.into(), values: Arc::new(values), text, recomputed: false }
    }

    /// Sets whether all stages recompute their activations; see [`StageBox::recomputed`], and
    /// [`Layer::recomputed`](super::Layer::recomputed) for stages that hold certain layers.
    pub fn recomputed(self, recomputed: bool) -> Self {
        Self { recomputed, ..self }
    }

    /// The number of layers.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// The entries and the seed, as text.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Why the list is no model, if it is none.
    pub(crate) fn check(&self) -> Result<(), LayersError> {
        self.values.as_ref().as_ref().map(|_| ()).map_err(Clone::clone)
    }

    fn values(&self) -> &[Value] {
        self.values.as_ref().as_ref().map_or(&[], Vec::as_slice)
    }

    pub(crate) fn edges(&self, cut: &[Range<usize>]) -> Vec<SkipEdge> {
        edges(self.values(), cut)
    }

    pub(crate) fn stage(&self, cut: &[Range<usize>], stage: usize, device: &Device, groups: &LayerGroups) -> StageBox {
        let wiring = Arc::new(Wiring::new(&self.layers, self.values(), cut, stage));
        let recomputed = self.recomputed || self.layers[cut[stage].clone()].iter().any(|layer| layer.recomputed);
        (self.make)(&cut[stage], stage + 1 == cut.len(), wiring, device, groups).recomputed(recomputed)
    }
}

/// Refuses empty lists and entries, and names that occur twice.
fn named_once(entries: &[(String, Option<usize>)]) -> Result<(), LayersError> {
    let mut known = BTreeSet::new();
    for (name, times) in entries {
        if *times == Some(0) {
            return Err(LayersError::NoRepetition { name: name.clone() });
        }
        if !known.insert(name) {
            return Err(LayersError::NameTwice { name: name.clone() });
        }
    }
    if entries.is_empty() { Err(LayersError::Empty) } else { Ok(()) }
}
