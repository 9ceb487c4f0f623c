//! What the user chooses of the ranks that share stages and weights, and of what plans are made with.

use super::builder::Builder;
use crate::cost::{LinkCosts, Profile};
use crate::group::GroupSizes;
use crate::vocabulary::Vocabulary;

impl Builder {
    /// Data parallelism: runs this many replicas of the pipeline, each on a part of every batch; 1 by default. The
    /// schedule's ranks and microbatches are those of each replica, so the job has `replicas` times as many of both.
    /// Losses, gradients and weights are those of one pipeline over the whole batch. Rank `p * replicas + r` of the job is
    /// rank `p` of replica `r`.
    pub fn data_parallel(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Tensor parallelism: `sizes` ranks hold each stage together, each a piece of its layers; 1 by default. The factory makes the
    /// pieces, with the layers of [`nn`](crate::nn) and [`StageContext::group`](crate::train::StageContext). With one size, the job has that many times as
    /// many ranks: rank `(p * replicas + r) * size + m` is member `m` of rank `p` in replica `r`.
    ///
    /// A list (`[1, 2]`) has a size for each of the schedule's ranks, whose stages are all held by as many. The job's ranks are numbered
    /// rank by rank of the schedule, then replica by replica, then member by member. Of two sizes between which something crosses, one
    /// divides the other.
    ///
    /// Numbers are one device's up to the rounding of sums that are added in parts, and the same bits under every schedule with
    /// `Ordered`. What is not there yet is refused: replaced modules, and [`AutoPipeline`](crate::AutoPipeline). Fused actions run one after the other.
    pub fn tensor_parallel(mut self, sizes: impl Into<GroupSizes>) -> Self {
        self.members = sizes.into();
        self
    }

    /// Spreads the vocabulary over all pipeline ranks: each has a piece of the embedding and of the head, and computes with it where it
    /// would be idle, so that a large vocabulary makes neither the first rank nor the last one the slowest. Stages are the layers
    /// between the two. Schedules and plans are rewritten for it ([`Plan::with_vocabulary`](crate::plan::Plan::with_vocabulary)), by the costs given to
    /// [`Builder::planned_with`] if they have those of a vocabulary, and by rough ones otherwise; a plan that spreads the same
    /// layers already is run as it is.
    ///
    /// Losses and gradients are those of the ordinary layers up to the rounding of sums that are added in parts, and the same bits in
    /// every run. Checkpoints and exports hold the ordinary layers' parameters. In what lists the model's stages
    /// ([`Pipeline::weights`](crate::Pipeline::weights), say) the embedding and the head come last, as two more (as one, if they are one matrix). Evaluations give the last stage's
    /// outputs, not scores. What is not there yet is refused: bidirectional schedules, [`Reduction::Weighted`](crate::stage::Reduction::Weighted),
    /// [`Builder::tensor_parallel`], [`Builder::share`], [`Builder::validate`] and [`AutoPipeline`](crate::AutoPipeline).
    pub fn vocabulary(mut self, vocabulary: Vocabulary) -> Self {
        self.vocabulary = Some(vocabulary);
        self
    }

    /// What of the vocabulary is spread over all ranks: for programs that do not work with it.
    pub fn get_vocabulary(&self) -> Option<&Vocabulary> {
        self.vocabulary.as_ref()
    }

    /// Shards the parameters of all stages over the data-parallel replicas, with their gradients and optimizer state: each
    /// replica keeps a piece, and gathers the whole while it uses the stage. Less memory is used, and more bytes are sent;
    /// numbers do not change. Optimizers must step each element by itself; a trial at the start refuses the others. A
    /// stage can override this ([`StageBox::sharded`](crate::stage::StageBox::sharded)).
    ///
    /// With [`Accumulation::Ordered`](crate::stage::Accumulation::Ordered), whole sums go from replica to replica after each batch, and pieces are kept between
    /// batches.
    pub fn sharded(mut self, sharded: bool) -> Self {
        self.sharded = sharded;
        self
    }

    /// The most stages whose sharded parameters a rank has gathered at a time, 3 by default: the one in use, and the next
    /// ones. A stage that is neither recomputed nor captured stays gathered while microbatches are between its forward and
    /// its backward.
    pub fn gathered_stages(mut self, most: usize) -> Self {
        self.gathered = most;
        self
    }

    /// Waits for the device after every task, so that timelines show how long tasks took there. For profiling.
    pub fn synchronize(mut self, synchronize: bool) -> Self {
        self.synchronize = synchronize;
        self
    }

    /// Delivers messages between ranks as late as these links would, to try out a slower network on one machine; see
    /// [`Delayed`](crate::link::Delayed).
    pub fn delayed(mut self, network: LinkCosts) -> Self {
        self.delay = Some(network);
        self
    }

    /// Predicts from this profile ([`Builder::measure_memory`]) how many bytes the first plan takes on each rank, for the error of a device
    /// that lacks memory ([`ExecuteError::Memory`](crate::execute::ExecuteError::Memory)). Nothing else depends on it, but where pieces of a vocabulary stand
    /// ([`Builder::vocabulary`]).
    pub fn planned_with(mut self, profile: Profile) -> Self {
        self.planned = Some(profile);
        self
    }

    /// Describes the model (its configuration as text, say). Ranks in processes compare it before they build their stages,
    /// so that a rank that was started with another model is named at once.
    pub fn model(mut self, description: impl Into<String>) -> Self {
        self.model = Some(description.into());
        self
    }
}
