//! Where a stage is built: what a factory is given.

use crate::cost::Partition;
use crate::tensor_group::TensorGroup;
use burn::tensor::Device;

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
    /// This stage's share of `layers` layers, in order: that of [`StageContext::cut`], if it cuts so many layers into so many
    /// stages. Else all stages get equally many; earlier ones take one more where it is not even.
    pub fn layers(&self, layers: usize) -> std::ops::Range<usize> {
        let fits = |cut: &&Partition| (cut.layers(), cut.stages()) == (layers, self.stages);
        if let Some(share) = self.cut.as_ref().filter(fits).and_then(|cut| cut.ranges().nth(self.index)) {
            return share;
        }
        let (each, more) = (layers / self.stages, layers % self.stages);
        let start = self.index * each + self.index.min(more);
        start..start + each + usize::from(self.index < more)
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
