//! `W` of several microbatches at once; see `program::merge`.

use super::engine::Captured;
use super::microbatch_run::MicrobatchRun;
use crate::payload::AnyTensor;
use crate::program::{Phase, Product};
use crate::stage::engine::recording::Parameters;
use crate::stage::error::StageError;
use crate::stage::module::Stage;
use crate::stage::state::GradientStore;
use std::sync::Arc;

impl Captured {
    /// Returns true if these microbatches run the same programs, and merged matmuls move fewer bytes.
    pub(super) fn mergeable(&self, microbatches: &[usize]) -> bool {
        let runs: Option<Vec<&MicrobatchRun>> =
            microbatches.iter().map(|microbatch| self.halfway.get(microbatch)).collect();
        let Some((first, rest)) = runs.as_deref().and_then(<[_]>::split_first) else { return false };
        let products = &first.stage.programs.merged.products;
        runs.iter().flatten().all(|run| run.is_whole())
            && rest.iter().all(|run| Arc::ptr_eq(&run.stage, &first.stage))
            && products.iter().any(|product| product.is_worth(microbatches.len()))
    }

    /// Runs the rest of `W` of each microbatch, then the matmuls over all of them.
    pub(super) fn merge_weights<M: Stage>(
        &mut self,
        module: &M,
        microbatches: &[usize],
        store: &mut GradientStore,
    ) -> Result<(), StageError> {
        let mut operands: Vec<Vec<_>> = Vec::new();
        let mut alike = None;
        for &microbatch in microbatches {
            let mut run = self.halfway.remove(&microbatch).ok_or(StageError::NotHeld)?;
            run.load(Phase::Input, || Parameters::of(module))?;
            let stage = run.stage.clone();
            let merged = &stage.programs.merged;
            let mut given = run.run(&merged.program)?.into_iter();
            operands.resize_with(merged.products.len(), Vec::new);
            operands.iter_mut().for_each(|pairs| pairs.extend(given.next().zip(given.next())));
            let gradient = |(&place, gradient)| (stage.weight(place), AnyTensor::from_dispatch(gradient));
            store.add(microbatch, merged.others.iter().zip(given).map(gradient).collect());
            alike = Some(stage.clone());
        }
        let Some(stage) = alike else { return Ok(()) };
        let products = stage.programs.merged.products.iter().zip(operands);
        let gradient = |(product, operands): (&Product, _)| {
            let sum = store.as_sum(AnyTensor::from_dispatch(product.over(operands)?), product.dtype());
            Some((stage.weight(product.gradient), sum))
        };
        let sums = products.filter_map(gradient).collect();
        store.sum(sums);
        Ok(())
    }
}
