//! Builder options for groups of ranks that share stages and weights, and for the inputs of planning.

use super::builder::Builder;
use crate::ranks::GroupSizes;
use crate::vocabulary::Vocabulary;
use burn_pipeline_plan::cost::{LinkCosts, Profile};

impl Builder {
    /// Data parallelism: runs this many replicas of the pipeline, each on a part of every batch; 1 by default. The
    /// schedule's ranks and microbatches are those of each replica, so the job has `replicas` times as many of both.
    /// Losses, gradients and weights are those of one pipeline over the whole batch. Rank `p * replicas + r` of the job
    /// is rank `p` of replica `r`.
    pub fn data_parallel(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Tensor parallelism: each stage is held by a group of `sizes` ranks, each with a piece of its layers; 1 by
    /// default. The factory makes the pieces, with the layers of [`nn`](crate::nn) and
    /// [`StageContext::group`](crate::train::StageContext). With one size, the job has that many times as many ranks:
    /// rank `(p * replicas + r) * size + m` is member `m` of rank `p` in replica `r`.
    ///
    /// A list (`[1, 2]`) has a group size for each of the schedule's ranks. The job's ranks are numbered by the
    /// schedule's rank, then by replica, then by member. Of two groups that exchange values, one size must divide the
    /// other.
    ///
    /// Sums are added in parts: the guide's chapter [`numbers`](crate::_guide::numbers) says what is equal, and what is
    /// refused beside it. Fused actions run one after the other.
    pub fn tensor_parallel(mut self, sizes: impl Into<GroupSizes>) -> Self {
        self.members = sizes.into();
        self
    }

    /// Vocabulary parallelism: each pipeline rank has a piece of the embedding and of the head, and computes with it
    /// when it would be idle, so that a large vocabulary does not make the first or the last rank the slowest. Stages
    /// are the layers between the two. Schedules and plans are rewritten
    /// ([`Plan::with_vocabulary`](crate::plan::Plan::with_vocabulary)) with the costs of [`Builder::planned_with`] if
    /// they include a vocabulary's, otherwise with rough ones. A plan that is already vocabulary parallel for the same
    /// layers runs unchanged.
    ///
    /// Checkpoints and exports hold the ordinary layers' parameters. Lists of the model's stages
    /// ([`Pipeline::weights`](crate::Pipeline::weights), for example) end with two more entries for the embedding and
    /// the head (one if they are one matrix). Evaluations return the last stage's outputs, not scores. Sums are added
    /// in parts: the guide's chapter [`numbers`](crate::_guide::numbers) says what is equal, and what is refused.
    pub fn vocabulary(mut self, vocabulary: Vocabulary) -> Self {
        self.vocabulary = Some(vocabulary);
        self
    }

    /// The vocabulary-parallel layers, if any, for programs that do not support them.
    pub fn get_vocabulary(&self) -> Option<&Vocabulary> {
        self.vocabulary.as_ref()
    }

    /// Shards the parameters of all stages over the data-parallel replicas, with their gradients and optimizer state:
    /// each replica keeps a shard, and gathers the whole while it uses the stage. This uses less memory and sends more
    /// bytes; numbers do not change. Optimizers must step each element by itself; a trial at the start refuses others.
    /// A stage can override this ([`StageBox::sharded`](crate::stage::StageBox::sharded)).
    ///
    /// With [`Accumulation::Ordered`](crate::stage::Accumulation::Ordered), whole sums go from replica to replica after
    /// each batch, and shards are kept between batches.
    pub fn sharded(mut self, sharded: bool) -> Self {
        self.sharded = sharded;
        self
    }

    /// Sets the maximum number of stages whose sharded parameters a rank has gathered at a time, 3 by default: the one
    /// in use, and the next ones. A stage that is neither recomputed nor captured stays gathered while microbatches are
    /// between its forward and its backward.
    pub fn gathered_stages(mut self, most: usize) -> Self {
        self.gathered = most;
        self
    }

    /// Delays messages between ranks as these links would, to try a slower network on one machine; see
    /// [`Delayed`](crate::link::Delayed).
    pub fn delayed(mut self, network: LinkCosts) -> Self {
        self.delay = Some(network);
        self
    }

    /// Predicts each rank's memory under the first plan from this profile ([`Builder::measure_memory`]), for
    /// out-of-memory errors ([`ExecuteError::Memory`](crate::execute::ExecuteError::Memory)). Its only other use is to
    /// place the pieces of a parallel vocabulary ([`Builder::vocabulary`]).
    pub fn planned_with(mut self, profile: Profile) -> Self {
        self.planned = Some(profile);
        self
    }

    /// Describes the model, for example by its configuration as text. Ranks in processes compare it before they build
    /// their stages, so a rank that was started with another model is detected at once.
    pub fn model(mut self, description: impl Into<String>) -> Self {
        self.model = Some(description.into());
        self
    }
}
