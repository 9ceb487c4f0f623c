//! The context in which a factory builds a stage.
//!
//! Guarantees: each layer of the model is in one stage. If a factory requests its share of a number of layers that
//! cannot be cut into these stages, it is stopped. The requested numbers are recorded ([`asking`]), to check that all
//! stages request the same.

use crate::scoped::scoped;
use crate::tensor_parallel::TensorGroup;
use burn::tensor::Device;
use burn_pipeline_plan::cost::{Partition, PartitionError};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::resume_unwind;

thread_local! {
    /// The numbers of layers of which a factory on this thread has requested its share.
    static ASKED: RefCell<Option<BTreeSet<usize>>> = const { RefCell::new(None) };
}

/// Calls a factory; also returns the numbers of layers of which it requested its share.
pub(crate) fn asking<T>(factory: impl FnOnce() -> T) -> (T, BTreeSet<usize>) {
    let (made, asked) = scoped(&ASKED, Some(BTreeSet::new()), factory);
    (made, asked.unwrap_or_default())
}

/// The context in which a stage is built.
#[derive(Debug, Clone)]
pub struct StageContext {
    /// The stage, 0 at the model's input.
    pub index: usize,
    /// The number of stages of the model.
    pub stages: usize,
    /// The rank that builds the stage.
    pub rank: usize,
    /// The rank's device, with autodiff.
    pub device: Device,
    /// The cut of the model's layers, if it was given or planned ([`Builder::cut`](crate::train::Builder::cut)).
    pub cut: Option<Partition>,
    /// The stage's tensor-parallel group ([`Builder::tensor_parallel`](crate::train::Builder::tensor_parallel)), for
    /// the layers of [`nn`](crate::nn).
    pub group: TensorGroup,
    /// The data-parallel replicas of the stage ([`Builder::data_parallel`](crate::train::Builder::data_parallel)), for
    /// layers whose weights are cut over them: expert parallelism
    /// (`burn_pipeline_moe::layers::Block::expert_parallel`). Each replica runs its own microbatches. A weight that is
    /// cut over replicas must get the tokens of all of them ([`TensorGroup::all_to_all`]), because its gradient is not
    /// summed over replicas.
    pub replicas: TensorGroup,
}

impl StageContext {
    /// This stage's share of `layers` layers, in order: according to [`StageContext::cut`], if there is one; otherwise
    /// an even cut, in which earlier stages take one more layer if needed. All stages that call this must pass the same
    /// numbers.
    ///
    /// # Panics
    /// Panics if there are fewer layers than stages, or if the cut has other numbers of layers or stages. In a factory
    /// this makes [`Builder::build`](crate::train::Builder::build) return an error with the reason.
    pub fn layers(&self, layers: usize) -> Range<usize> {
        self.share(layers).unwrap_or_else(|refused| match ASKED.with_borrow(Option::is_some) {
            // Becomes an error of `build`, so nothing is printed.
            true => resume_unwind(Box::new(refused)),
            false => panic!("{refused}"),
        })
    }

    fn share(&self, layers: usize) -> Result<Range<usize>, PartitionError> {
        let even = Partition::even(layers, self.stages)?;
        let cut = self.cut.as_ref().unwrap_or(&even);
        let sizes = [("layers", cut.layers(), layers), ("stages", cut.stages(), self.stages)];
        if let Some((what, cut, given)) = sizes.into_iter().find(|(_, cut, given)| cut != given) {
            return Err(PartitionError::Size { what, cut, given });
        }
        ASKED.with_borrow_mut(|asked| asked.as_mut().map(|asked| asked.insert(layers)));
        let no_stage = PartitionError::Size { what: "stages", cut: self.stages, given: self.index + 1 };
        cut.ranges().nth(self.index).ok_or(no_stage)
    }

    /// Returns true for the first stage.
    pub fn is_first(&self) -> bool {
        self.index == 0
    }

    /// Returns true for the last stage.
    pub fn is_last(&self) -> bool {
        self.index + 1 == self.stages
    }
}
