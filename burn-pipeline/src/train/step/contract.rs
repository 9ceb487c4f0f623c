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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::Batch;
    use burn::tensor::{Device, Tensor};
    use burn_pipeline_plan::plan::StageId;

    fn cut(samples: usize, count: usize) -> Microbatches {
        Batch::new(Tensor::<2>::zeros([samples, 1], &Device::flex())).cut(count).unwrap()
    }

    fn part(index: usize, loss: f64, weight: f64) -> MicrobatchLoss {
        MicrobatchLoss { index, rank: 0, stage: StageId::new(0), loss, weight }
    }

    fn parts(batch: &Microbatches, losses: &[f64]) -> Vec<MicrobatchLoss> {
        losses.iter().enumerate().map(|(index, &loss)| part(index, loss, batch.size(index) as f64)).collect()
    }

    #[test]
    fn uneven_microbatches_weigh_as_their_samples_do() {
        // Means over 3 and 2 samples of values 1..=5: the mean of all is 3.
        let (batch, mut contract) = (cut(5, 2), Contract::new(Reduction::Mean));
        let seeding = contract.seeding(&batch);
        assert_eq!(contract.gather(&parts(&batch, &[2.0, 4.5])).0, 3.0);
        // A gradient that is 1 a sample: seeds and scale give 1 over the batch.
        let gradient: f64 = (0..2).map(|i| seeding.seed(&batch, i) * 1.0).sum();
        assert!((gradient * contract.scale() - 1.0).abs() < 1e-15);
    }

    #[test]
    fn even_microbatches_are_seeded_with_one() {
        let (batch, mut contract) = (cut(8, 4), Contract::new(Reduction::Mean));
        let seeding = contract.seeding(&batch);
        assert!((0..4).all(|i| seeding.seed(&batch, i) == 1.0));
        contract.gather(&parts(&batch, &[1.0; 4]));
        assert_eq!(contract.scale(), 0.25);
    }

    #[test]
    fn accumulated_batches_count_as_one() {
        let (small, large, mut contract) = (cut(2, 1), cut(6, 2), Contract::new(Reduction::Mean));
        contract.seeding(&small);
        contract.gather(&parts(&small, &[8.0]));
        contract.seeding(&large);
        contract.gather(&parts(&large, &[1.0, 3.0]));
        assert_eq!(contract.loss(), (8.0 * 2.0 + 1.0 * 3.0 + 3.0 * 3.0) / 8.0);
    }

    #[test]
    fn weights_divide_the_sum_of_sums() {
        let mut contract = Contract::new(Reduction::Weighted);
        contract.gather(&[part(0, 6.0, 3.0), part(1, 0.0, 0.0), part(2, 4.0, 1.0)]);
        assert_eq!((contract.loss(), contract.scale()), (2.5, 0.25));
        let mut padding = Contract::new(Reduction::Weighted);
        padding.gather(&[part(0, 0.0, 0.0)]);
        assert_eq!((padding.loss(), padding.scale()), (0.0, 0.0));
    }
}
