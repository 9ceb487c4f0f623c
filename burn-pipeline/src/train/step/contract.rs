//! The loss contract over one step: from microbatch losses to the batch's loss and the gradients' factor.
//!
//! Guarantees: however the step was cut and however many batches were accumulated, the loss and the scaled gradients
//! are those of one loss over all samples; see [`Reduction`].

use crate::execute::{MicrobatchLoss, Seeding};
use crate::stage::{Microbatches, Reduction};
use crate::train::non_finite::NonFinite;
use crate::train::progress::Scaled;

/// The losses since the last step.
#[derive(Debug, Clone)]
pub(crate) struct Contract {
    reduction: Reduction,
    reference: Option<usize>,
    /// How losses are scaled, the same for all batches of a step and on all ranks.
    pub(crate) scaled: Scaled,
    loss: f64,
    weight: f64,
    non_finite: Option<NonFinite>,
}

impl Contract {
    /// An empty step.
    pub(super) fn new(reduction: Reduction) -> Self {
        Self { reduction, reference: None, scaled: Scaled::default(), loss: 0.0, weight: 0.0, non_finite: None }
    }

    /// How the backwards of the next batch are seeded. The first batch of a step sets the reference size for all.
    pub(super) fn seeding(&mut self, batch: &Microbatches) -> Seeding {
        let reference = *self.reference.get_or_insert_with(|| batch.size(0));
        Seeding { reduction: self.reduction, reference_samples: reference, factor: self.scaled.factor }
    }

    /// Adds the losses of one batch. Returns that batch's own loss, and the factor that turns its gradients into those
    /// of that loss.
    pub(super) fn gather(&mut self, losses: &[MicrobatchLoss]) -> (f64, f64) {
        // Sums over microbatches, in their order.
        let mean = self.reduction == Reduction::Mean;
        let loss: f64 = losses.iter().map(|part| if mean { part.loss * part.weight } else { part.loss }).sum();
        let weight: f64 = losses.iter().map(|part| part.weight).sum();
        self.non_finite = self.non_finite.take().or_else(|| NonFinite::among(losses));
        self.loss += loss;
        self.weight += weight;
        (self.mean(loss, weight), self.scale_over(weight))
    }

    /// The first loss since the last step that is NaN or infinite.
    pub(super) fn non_finite(&self) -> Option<NonFinite> {
        self.non_finite.clone()
    }

    /// The loss over all batches since the last step.
    pub(super) fn loss(&self) -> f64 {
        self.mean(self.loss, self.weight)
    }

    /// The factor that turns accumulated gradients into those of [`Contract::loss`].
    pub(super) fn scale(&self) -> f64 {
        self.scale_over(self.weight)
    }

    fn scale_over(&self, weight: f64) -> f64 {
        let scale = match self.reduction {
            Reduction::Sum => 1.0,
            Reduction::Mean => self.reference.unwrap_or(1) as f64 / weight,
            Reduction::Weighted if weight == 0.0 => 0.0,
            Reduction::Weighted => 1.0 / weight,
        };
        scale / self.scaled.factor
    }

    fn mean(&self, loss: f64, weight: f64) -> f64 {
        match self.reduction {
            Reduction::Sum => loss,
            // No token counts, so the loss is 0.
            Reduction::Weighted if weight == 0.0 => 0.0,
            Reduction::Mean | Reduction::Weighted => loss / weight,
        }
    }
}
