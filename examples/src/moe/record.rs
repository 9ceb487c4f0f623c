//! What the routers of a model with experts did in one step, in printed form.

use crate::moe::gpt::{MoeGptConfig, MoeGptError, Observed};
use crate::training::StepRecord;
use burn_pipeline_moe::auxiliary::{LayerObservation, combine_microbatches};
use serde::Serialize;

/// The printed record of a step; a line of `--log json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MoeStepRecord {
    /// The record of any training; the loss is that of the next token.
    #[serde(flatten)]
    pub step: StepRecord,
    /// The mean loss of the tokens after the next one; 0 if none are predicted.
    pub ahead: f64,
    /// The mean load-balancing loss over layers with experts: 1 if even.
    pub load_balance: f64,
    /// The mean router z-loss over layers with experts.
    pub router_z: f64,
    /// The mean router loss over mixtures of depths.
    pub depth_router: f64,
    /// The fraction of choices that were dropped because their expert was full.
    pub dropped: f64,
    /// The largest load over the mean load, of each layer with experts.
    pub imbalance: Vec<f64>,
    /// The number of choices of each expert, of each layer with experts.
    pub load: Vec<Vec<f64>>,
}

/// The losses and loads observed for microbatches of `samples` samples.
#[derive(Debug)]
pub struct Observations {
    of_microbatches: Vec<Observed>,
    samples: usize,
}

impl Observations {
    /// Reads the loss's observations of each microbatch.
    pub fn new(model: &MoeGptConfig, observed: &[Vec<f64>], samples: usize) -> Self {
        Self { of_microbatches: observed.iter().map(|numbers| model.read(numbers)).collect(), samples }
    }

    /// The mean over samples. Microbatches differ by one sample at most, and larger ones come first.
    fn mean(&self, value: impl Fn(&Observed) -> f64) -> f64 {
        let (samples, count) = (self.samples, self.of_microbatches.len().max(1));
        let size = |index: usize| samples / count + usize::from(index < samples % count);
        let weighted = self.of_microbatches.iter().enumerate().map(|(index, one)| value(one) * size(index) as f64);
        weighted.sum::<f64>() / samples.max(1) as f64
    }

    /// The loss of the next token alone; `whole` is the training loss.
    pub fn next_loss(&self, model: &MoeGptConfig, whole: f64) -> f64 {
        if model.ahead.is_empty() { whole } else { self.mean(|one| one.next) }
    }

    /// The printed record of a step.
    ///
    /// # Errors
    /// Returns a [`MoeGptError`] if the model's pattern has an unknown letter.
    pub fn record(&self, model: &MoeGptConfig, step: StepRecord) -> Result<MoeStepRecord, MoeGptError> {
        let rows: Vec<&[LayerObservation]> = self.of_microbatches.iter().map(|one| &*one.layers).collect();
        let (layers, kinds) = (combine_microbatches(&rows), model.blocks()?);
        let (mut experts, mut depths) = (Vec::new(), Vec::new());
        for (layer, kind) in layers.iter().zip(kinds) {
            experts.extend(kind.has_experts().then_some(layer));
            depths.extend(kind.has_depths().then_some(layer));
        }
        let choices: f64 = experts.iter().flat_map(|layer| &layer.load).sum();
        Ok(MoeStepRecord {
            step,
            ahead: self.mean(|one| mean(one.ahead.iter().copied())),
            load_balance: mean(experts.iter().map(|layer| layer.load_balance)),
            router_z: mean(experts.iter().map(|layer| layer.router_z)),
            depth_router: mean(depths.iter().map(|layer| layer.depth_router)),
            dropped: experts.iter().map(|layer| layer.dropped).sum::<f64>() / choices.max(1.0),
            imbalance: experts.iter().map(|layer| layer.imbalance()).collect(),
            load: experts.iter().map(|layer| layer.load.clone()).collect(),
        })
    }
}

/// The mean; 0 if empty.
fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    values.fold(0.0, |sum, value| sum + value) / count
}
