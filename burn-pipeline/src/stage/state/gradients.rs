//! The sums of a stage's weight gradients over the microbatches of a step.

use crate::payload::AnyTensor;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor};
use std::collections::{BTreeMap, HashMap};

/// The order in which the gradients of microbatches are added.
///
/// Floating-point addition rounds, so sums in different orders can differ in their last bits. With `Ordered`, every
/// schedule gives the same bits; with `AsTheyCome`, every schedule adds in its own order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Accumulation {
    /// In the order in which backwards end: needs no memory besides the sum.
    #[default]
    AsTheyCome,
    /// In the order of microbatches: bit-equal over all schedules. Gradients that come early are held back, which takes
    /// memory for as many sets of gradients as the schedule runs ahead of that order.
    Ordered,
}

/// The weight gradients of one microbatch, by parameter.
pub(in crate::stage) type WeightGradients = Vec<(ParamId, AnyTensor)>;

/// The sum of weight gradients over microbatches, by parameter.
#[derive(Debug, Default)]
pub(crate) struct GradientStore {
    pub(crate) accumulation: Accumulation,
    sums: HashMap<ParamId, AnyTensor>,
    early: BTreeMap<usize, WeightGradients>,
    /// One of two parts of a microbatch's gradients.
    halves: HashMap<usize, WeightGradients>,
    next: usize,
    /// True if sums of half-precision gradients are f32.
    wide: bool,
}

impl GradientStore {
    /// If `wide`, half-precision gradients are added in f32.
    pub(crate) fn new(accumulation: Accumulation, wide: bool) -> Self {
        Self { accumulation, wide, ..Self::default() }
    }

    /// An empty store with the same rules.
    pub(crate) fn emptied(&self) -> Self {
        Self::new(self.accumulation, self.wide)
    }

    /// A sum that was made in f32, in the type of the sums of gradients of type `own`.
    pub(in crate::stage) fn as_sum(&self, sum: AnyTensor, own: DType) -> AnyTensor {
        if self.wide { sum } else { sum.cast(own) }
    }

    /// Starts a pass over microbatches `first`, `first + 1` and so on; their gradients are added to the sums so far.
    ///
    /// With ordered sums, `None` holds all gradients back until [`GradientStore::release`].
    pub(crate) fn begin(&mut self, first: Option<usize>) {
        self.next = first.unwrap_or(usize::MAX);
        self.early.clear();
        self.halves.clear();
    }

    /// Adds the gradients that were held back, in microbatch order.
    pub(crate) fn release(&mut self) {
        for gradients in std::mem::take(&mut self.early).into_values() {
            self.sum(gradients);
        }
    }

    /// Adds the gradients of one microbatch.
    pub(crate) fn add(&mut self, microbatch: usize, gradients: WeightGradients) {
        if self.accumulation == Accumulation::AsTheyCome {
            return self.sum(gradients);
        }
        self.early.insert(microbatch, gradients);
        while let Some(gradients) = self.early.remove(&self.next) {
            self.next += 1;
            self.sum(gradients);
        }
    }

    /// Adds the gradients of one microbatch, or one of two parts of them (`half`), for a parameter whose two uses have
    /// separate backwards. Ordered sums have the same bits whichever part comes first.
    pub(crate) fn add_part(&mut self, microbatch: usize, gradients: WeightGradients, half: bool) {
        if !half || self.accumulation == Accumulation::AsTheyCome {
            return self.add(microbatch, gradients);
        }
        let Some(first) = self.halves.remove(&microbatch) else {
            self.halves.insert(microbatch, gradients);
            return;
        };
        // A sum of two numbers does not depend on their order; a sum of three would.
        let mut both = self.emptied();
        both.sum(first);
        both.sum(gradients);
        self.add(microbatch, both.sums.into_iter().collect());
    }

    /// Returns true if gradients of this microbatch would be added to the sums now, and not held back.
    pub(in crate::stage) fn adds_now(&self, microbatch: usize) -> bool {
        self.accumulation == Accumulation::AsTheyCome || self.next == microbatch
    }

    /// Adds gradients to the sums now.
    pub(in crate::stage) fn sum(&mut self, gradients: WeightGradients) {
        for (id, gradient) in gradients {
            let gradient = if self.wide { gradient.widened() } else { gradient };
            let sum = match self.sums.remove(&id) {
                Some(sum) => sum.plus(gradient),
                None => gradient,
            };
            self.sums.insert(id, sum);
        }
    }

    /// Multiplies every sum by a factor, in place; 1 costs nothing.
    pub(crate) fn scale(&mut self, factor: f64) {
        if factor != 1.0 {
            let scaled = self.sums.drain().map(|(id, sum)| (id, sum.scale(factor))).collect();
            self.sums = scaled;
        }
    }

    pub(crate) fn get(&self, id: ParamId) -> Option<&AnyTensor> {
        self.sums.get(&id)
    }

    pub(crate) fn set(&mut self, id: ParamId, gradient: AnyTensor) {
        self.sums.insert(id, gradient);
    }

    /// All tensors that it holds: sums, and gradients that are held back.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &AnyTensor> {
        let early = self.early.values().chain(self.halves.values()).flatten().map(|(_, gradient)| gradient);
        self.sums.values().chain(early)
    }

    pub(crate) fn remove(&mut self, id: ParamId) -> Option<AnyTensor> {
        self.sums.remove(&id)
    }

    pub(crate) fn clear(&mut self) {
        self.sums.clear();
        self.early.clear();
        self.halves.clear();
    }
}

/// Moves the sums out of the store, into the type that Burn's optimizers take.
pub(in crate::stage) fn collected<M: Module>(module: &M, store: &mut GradientStore) -> GradientsParams {
    let mut collect = Collect { store, gradients: GradientsParams::new() };
    module.visit(&mut collect);
    collect.gradients
}

struct Collect<'a> {
    store: &'a mut GradientStore,
    gradients: GradientsParams,
}

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.store.remove(param.id) {
            self.gradients.register(param.id, Tensor::<D>::from_dispatch(gradient.into_dispatch()));
        }
    }
}
