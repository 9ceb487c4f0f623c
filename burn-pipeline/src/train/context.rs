//! Where a stage is built: what a factory is given.
//!
//! Guarantees: each layer of the model is in one stage. A factory that asks for the share of layers that no cut into these stages has is stopped
//! there, and the numbers that it asks for are known ([`asking`]), so that all stages can be seen to ask for the same.

use crate::cost::{Partition, PartitionError};
use crate::tensor_group::TensorGroup;
use burn::tensor::Device;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::resume_unwind;

thread_local! {
    /// The numbers of layers that a factory on this thread has asked for its share of.
    static ASKED: RefCell<Option<BTreeSet<usize>>> = const { RefCell::new(None) };
}

/// Calls a factory, and tells of how many layers it asked for its share.
pub(crate) fn asking<T>(factory: impl FnOnce() -> T) -> (T, BTreeSet<usize>) {
    struct Restore(Option<BTreeSet<usize>>);

    impl Drop for Restore {
        fn drop(&mut self) {
            ASKED.replace(self.0.take());
        }
    }

    let _before = Restore(ASKED.replace(Some(BTreeSet::new())));
    let made = factory();
    (made, ASKED.take().unwrap_or_default())
}

/// Where a stage is to be built.
#[derive(Debug, Clone)]
pub struct StageContext {
    /// The stage, 0 at the model's input.
    pub index: usize,
    /// How many stages the model has.
    pub stages: usize,
    /// The rank of the job that builds it.
    pub rank: usize,
    /// The rank's device, with autodiff.
    pub device: Device,
    /// How the model's layers are cut, where that was given or planned ([`Builder::cut`](crate::train::Builder::cut)).
    pub cut: Option<Partition>,
    /// The ranks that hold the stage together ([`Builder::tensor_parallel`](crate::train::Builder::tensor_parallel)), for the layers of
    /// [`nn`](crate::nn).
    pub group: TensorGroup,
    /// The data-parallel replicas of the stage ([`Builder::data_parallel`](crate::train::Builder::data_parallel)), for layers whose weights are
    /// spread over them: experts (`burn_pipeline_moe::layers::Block::spread`). Each replica runs its own microbatches. A weight that was
    /// cut over replicas must get the tokens of all of them ([`TensorGroup::all_to_all`]), since its gradient is not summed over replicas.
    pub replicas: TensorGroup,
}

impl StageContext {
    /// This stage's share of `layers` layers, in order: that of [`StageContext::cut`], if there is one. Else all stages get equally
    /// many; earlier ones take one more where it is not even. All stages that ask must ask for the same numbers.
    ///
    /// # Panics
    /// If there are fewer layers than stages, or the cut is of other layers or stages. In a factory this ends
    /// [`Builder::build`](crate::train::Builder::build) with an error that says so.
    pub fn layers(&self, layers: usize) -> Range<usize> {
        self.share(layers).unwrap_or_else(|refused| match ASKED.with_borrow(Option::is_some) {
            // An error of `build`: nothing is printed.
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

    /// Is it the first stage?
    pub fn is_first(&self) -> bool {
        self.index == 0
    }

    /// Is it the last stage?
    pub fn is_last(&self) -> bool {
        self.index + 1 == self.stages
    }
}
