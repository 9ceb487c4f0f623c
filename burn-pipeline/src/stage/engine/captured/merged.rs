//! `W` of several microbatches at once; see `program::merge`.

use super::engine::Captured;
use super::microbatch_run::Flight;
use super::parameters::Parameters;
use crate::program::{Phase, Product};
use crate::stage::Stage;
use crate::stage::boundary::AnyTensor;
use crate::stage::error::StageError;
use crate::stage::state::GradientStore;
use std::sync::Arc;

impl<M: Stage> Captured<M> {
    /// Were these microbatches captured alike, and is it worth it to put their products together?
    pub(super) fn mergeable(&self, microbatches: &[usize]) -> bool {
        let flights: Option<Vec<&Flight>> =
            microbatches.iter().map(|microbatch| self.halfway.get(microbatch)).collect();
        let Some((first, rest)) = flights.as_deref().and_then(<[_]>::split_first) else { return false };
        let products = first.ready.programs.merged_weight().products();
        flights.iter().flatten().all(|flight| flight.is_whole())
            && rest.iter().all(|flight| Arc::ptr_eq(&flight.ready, &first.ready))
            && products.iter().any(|product| product.is_worth(microbatches.len()))
    }

    /// Runs what each microbatch must run by itself, then the products over all.
    pub(super) fn merge_weights(
        &mut self,
        module: &M,
        microbatches: &[usize],
        store: &mut GradientStore,
    ) -> Result<(), StageError> {
        let mut operands: Vec<Vec<_>> = Vec::new();
        let mut alike = None;
        for &microbatch in microbatches {
            let mut flight = self.halfway.remove(&microbatch).ok_or(StageError::NotHeld)?;
            flight.load(Phase::Input, || Parameters::of(module))?;
            let ready = flight.ready.clone();
            let merged = ready.programs.merged_weight();
            let mut given = flight.run(merged.program()).into_iter();
            operands.resize_with(merged.products().len(), Vec::new);
            operands.iter_mut().for_each(|pairs| pairs.extend(given.next().zip(given.next())));
            let gradient = |(&place, gradient)| (ready.weight(place), AnyTensor::from_dispatch(gradient));
            store.add(microbatch, merged.others().iter().zip(given).map(gradient).collect());
            alike = Some(ready.clone());
        }
        let Some(ready) = alike else { return Ok(()) };
        let products = ready.programs.merged_weight().products().iter().zip(operands);
        let gradient = |(product, operands): (&Product, _)| {
            product.over(operands).map(|sum| (ready.weight(product.gradient), AnyTensor::from_dispatch(sum)))
        };
        store.add_merged(products.filter_map(gradient).collect());
        Ok(())
    }
}
