//! Batches given as microbatches, each with its own shape (sequences of several lengths), and batches of zeros.

use super::microbatches::Microbatches;
use super::split::{Cuttable, MicrobatchError, Split};
use super::whole::Batch;

impl Batch {
    /// A batch made of given microbatches. Each has its own shape, target, extras and split rules, and counts by its
    /// number of samples.
    ///
    /// ```
    /// use burn::tensor::{Device, Int, Tensor};
    /// use burn_pipeline::stage::Batch;
    /// let text = |samples: usize, length: usize| {
    ///     let tokens = Tensor::<2, Int>::zeros([samples, length], &Device::flex());
    ///     Batch::new(tokens.clone()).target(tokens)
    /// };
    /// let batch = Batch::from_microbatches(vec![text(2, 7), text(2, 11), text(1, 32)]).cut(3)?;
    /// assert_eq!((batch.len(), batch.samples(), batch.size(2)), (3, 5, 1));
    /// # Ok::<(), burn_pipeline::stage::MicrobatchError>(())
    /// ```
    pub fn from_microbatches(pieces: Vec<Batch>) -> Self {
        let first = pieces.first().cloned().unwrap_or_else(|| Batch::new(()));
        Self { pieces, ..first }
    }

    /// Returns the given microbatches, whatever number was requested.
    pub(super) fn cut_given(self) -> Result<Microbatches, MicrobatchError> {
        if let Some(method) = self.misplaced {
            return Err(MicrobatchError::Misplaced { method });
        }
        let (mut bounds, mut targets) = (vec![0], 0);
        for piece in &self.pieces {
            let alone = Batch { pieces: Vec::new(), ..piece.clone() }.cut(1)?;
            bounds.push(bounds[bounds.len() - 1] + alone.samples());
            targets += usize::from(piece.has_target());
        }
        if targets != 0 && targets != self.pieces.len() {
            return Err(MicrobatchError::SomeTargets { targets, pieces: self.pieces.len() });
        }
        Ok(Microbatches { batch: self, bounds })
    }
}

impl Microbatches {
    /// Zeros with the first microbatch's shape plus `more` samples, as `count` microbatches.
    ///
    /// # Errors
    /// Returns no error after a successful cut; the type is shared with the other parts.
    pub fn zeros(&self, count: usize, more: usize) -> Result<Self, MicrobatchError> {
        let batch = self.piece_batch(0).clone();
        let samples = count * (self.size(0) + more);
        let zeros = |part: Cuttable| {
            let payload = part.payload.clone().map(|index, tensor| {
                let mut shape = tensor.shape();
                if let Split::Dim(dim) = part.rule(index) {
                    shape[dim] = samples;
                }
                tensor.zeros(shape)
            });
            Cuttable { payload, ..part }
        };
        batch.map_parts(zeros).cut(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Tensor};

    #[test]
    fn what_belongs_to_a_microbatch_is_refused_beside_given_ones() {
        let tensor = || Tensor::<2>::zeros([2, 3], &Device::flex());
        let given = || Batch::from_microbatches(vec![Batch::new(tensor()), Batch::new(tensor())]);
        assert!(given().cut(2).is_ok());
        let refused = [
            ("target", given().target(tensor())),
            ("extra", given().extra("mask", tensor())),
            ("split_input", given().split_input(vec![Split::Dim(1)])),
            ("split_target", given().split_target(vec![Split::Dim(1)])),
            ("split_extra", given().split_extra("mask", vec![Split::Dim(1)])),
        ];
        for (method, batch) in refused {
            assert_eq!(batch.cut(2).unwrap_err(), MicrobatchError::Misplaced { method });
        }
    }
}
