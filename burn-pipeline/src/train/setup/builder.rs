//! Setting a pipeline up: everything that the user chooses.

use super::context::StageContext;
use crate::cost::LinkCosts;
use crate::execute::FusedActions;
use crate::plan::{Plan, SkipEdge};
use crate::schedule::{IntoSchedule, ScheduleError, Size};
use crate::stage::{Accumulation, Reduction, SplitBackward, StageBox, Validate};
use crate::train::pipeline::Pipeline;
use crate::train::plans::{Replication, Source};
use crate::train::shared::SharedParameter;
use crate::train::step::Settings;
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;
use std::sync::Arc;
use std::time::Duration;

pub(crate) type Factory = Arc<dyn Fn(&StageContext) -> StageBox + Send + Sync>;
pub(crate) type Optimizers = Arc<dyn Fn() -> ModuleOptimizer + Send + Sync>;

/// Everything that a pipeline is built from; see [`Pipeline::builder`].
#[derive(Clone)]
pub struct Builder {
    pub(super) source: Option<Result<Source, ScheduleError>>,
    pub(crate) factory: Option<Factory>,
    pub(crate) optimizers: Option<Optimizers>,
    pub(crate) reduction: Reduction,
    pub(crate) devices: Vec<Device>,
    pub(crate) threads: usize,
    pub(crate) timeout: Duration,
    pub(crate) clip_norm: Option<f64>,
    pub(crate) accumulation: Accumulation,
    pub(crate) synchronize: bool,
    pub(crate) split: SplitBackward,
    pub(crate) keep_outputs: bool,
    pub(crate) shared: Vec<SharedParameter>,
    pub(crate) skips: Vec<SkipEdge>,
    pub(crate) validate: Validate,
    pub(crate) seed: Option<u64>,
    pub(crate) merge_weights: bool,
    pub(crate) fused: FusedActions,
    pub(crate) model: Option<String>,
    pub(crate) replicas: usize,
    pub(crate) sharded: bool,
    pub(crate) gathered: usize,
    pub(crate) delay: Option<LinkCosts>,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("devices", &self.devices)
            .field("threads", &self.threads)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// Runs this instead of what was given.
    pub(crate) fn source(mut self, source: Source) -> Self {
        self.source = Some(Ok(source));
        self
    }

    /// How the pipeline is replicated for data parallelism.
    pub(super) fn replication(&self) -> Replication {
        Replication { replicas: self.replicas, gathered: self.sharded.then_some(self.gathered) }
    }

    /// What all ranks do alike.
    pub(super) fn settings(&self) -> Settings {
        Settings { reduction: self.reduction, clip_norm: self.clip_norm, validate: self.validate }
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            source: None,
            factory: None,
            optimizers: None,
            reduction: Reduction::default(),
            devices: vec![Device::default()],
            threads: 1,
            timeout: Duration::from_secs(120),
            clip_norm: None,
            accumulation: Accumulation::default(),
            synchronize: false,
            split: SplitBackward::default(),
            keep_outputs: false,
            shared: Vec::new(),
            skips: Vec::new(),
            validate: Validate::Off,
            seed: None,
            merge_weights: false,
            fused: FusedActions::default(),
            model: None,
            replicas: 1,
            sharded: false,
            gathered: 3,
            delay: None,
        }
    }
}

impl Pipeline {
    /// Starts to set a pipeline up.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl Builder {
    /// Runs this family at this size: `schedule(OneFOneB, size)`, or by its name, `schedule("1F1B", size)`. A name that
    /// no family has is an error of [`Builder::build`]. A batch of fewer samples gets fewer microbatches.
    pub fn schedule(mut self, schedule: impl IntoSchedule, size: Size) -> Self {
        self.source = Some(schedule.into_schedule().map(|schedule| Source::Schedule(Arc::from(schedule), size)));
        self
    }

    /// Runs this plan, and only its number of microbatches. Transfers are inserted if it has none.
    pub fn plan(mut self, plan: Plan) -> Self {
        self.source = Some(Ok(Source::Plan(Arc::new(plan))));
        self
    }

    /// Makes a stage. Called on the rank that holds it, so that the whole model never exists in one place; in a
    /// bidirectional placement it is called for both replicas, of which the second takes over the first's weights.
    pub fn stages(mut self, factory: impl Fn(&StageContext) -> StageBox + Send + Sync + 'static) -> Self {
        self.factory = Some(Arc::new(factory));
        self
    }

    /// Makes the optimizer of each stage. Without one, `step` leaves weights as they are and forgets gradients;
    /// [`Pipeline::accumulate`] and [`Pipeline::take_gradients`] give them.
    pub fn optimizer(mut self, make: impl Fn() -> ModuleOptimizer + Send + Sync + 'static) -> Self {
        self.optimizers = Some(Arc::new(make));
        self
    }

    /// What the loss is over a microbatch; [`Reduction::Mean`] unless said otherwise.
    pub fn reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = reduction;
        self
    }

    /// The device of every rank, or one a rank (autodiff is added). Burn's default device unless said otherwise.
    pub fn devices(mut self, devices: Vec<Device>) -> Self {
        self.devices = devices;
        self
    }

    /// Compute threads a rank, 1 unless said otherwise. Each rank has a pool of its own: ranks that share one
    /// get in each other's way.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// The longest that any wait may take, 120 s by default. A stage's first run may compile kernels, so leave it time.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Clips gradients so that their norm over all ranks is at most this.
    pub fn clip_norm(mut self, norm: f64) -> Self {
        self.clip_norm = Some(norm);
        self
    }

    /// In which order gradients of microbatches are added.
    pub fn accumulation(mut self, accumulation: Accumulation) -> Self {
        self.accumulation = accumulation;
        self
    }

    /// Which way stages run their backwards, [`SplitBackward::Auto`] unless said otherwise;
    /// [`Pipeline::engines`] says which way each stage went, and why.
    pub fn split(mut self, split: SplitBackward) -> Self {
        self.split = split;
        self
    }

    /// Holds the outputs of stages until their backward instead of releasing them once they were handed on: what a
    /// plain autodiff loop does, to measure what the release saves.
    pub fn keep_outputs(mut self, keep: bool) -> Self {
        self.keep_outputs = keep;
        self
    }

    /// Hands a value of stage `from` straight to stage `to`, past those between: stage `from` puts out a
    /// [`Skip`](crate::stage::Skip) for it, and stage `to` takes one in.
    pub fn skip(mut self, from: usize, to: usize) -> Self {
        self.skips.push(SkipEdge { from, to });
        self
    }

    /// Which forms of what crosses stage boundaries are compared with the stages' metadata while training; none unless
    /// said otherwise. See [`StageMetadata`](crate::stage::StageMetadata) for where that comes from.
    pub fn validate(mut self, validate: Validate) -> Self {
        self.validate = validate;
        self
    }

    /// Declares a parameter that several stages hold: its copies start equal and get the sum of all their gradients.
    /// [`Pipeline::shared`] says where it was found.
    pub fn share(mut self, parameter: SharedParameter) -> Self {
        self.shared.push(parameter);
        self
    }

    /// Has every forward of a training batch draw its random numbers (dropout, noise) from this seed, the number of
    /// the batch, the stage and the microbatch alone: so a job that is taken up again draws what it would have drawn,
    /// whatever the schedule. Forwards of ranks in one process take turns then, as Burn has one generator for all.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Runs `W`s of one stage that a rank has side by side at once: the products of a captured stage's linear layers
    /// then go over the rows of several microbatches, wherever that moves fewer bytes (many short microbatches, wide
    /// layers). Sums are added in another order, so gradients differ from the plain ones by rounding: not to be had
    /// with [`Accumulation::Ordered`].
    pub fn merge_weights(mut self, merge: bool) -> Self {
        self.merge_weights = merge;
        self
    }

    /// How fused actions (`OVERLAP_F_B`, as DualPipe has them) are run, [`FusedActions::Auto`] unless said otherwise.
    pub fn fused(mut self, fused: FusedActions) -> Self {
        self.fused = fused;
        self
    }

    /// Runs this many replicas of the pipeline, each on a part of every batch: data parallelism. The schedule's ranks and
    /// microbatches are those of each replica, so the job has `replicas` times as many of both. Losses, gradients and
    /// weights are those of one pipeline over the whole batch. Rank `p * replicas + r` is rank `p` of replica `r`. 1 unless
    /// said otherwise.
    pub fn data_parallel(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Shards the parameters of all stages over the data-parallel replicas, with their gradients and optimizer state: each
    /// replica keeps a piece, and gathers the whole while it uses the stage. Memory falls, and bytes sent rise; numbers
    /// are those of replicas that each have everything. Optimizers must step each element by itself; others are refused
    /// at the start, as far as a trial shows it. A stage may say otherwise for itself ([`StageBox::sharded`]).
    ///
    /// With [`Accumulation::Ordered`], sums are handed from replica to replica after each batch, whole; pieces are kept
    /// between batches.
    pub fn sharded(mut self, sharded: bool) -> Self {
        self.sharded = sharded;
        self
    }

    /// The most stages whose sharded parameters a rank has gathered at a time, 3 unless said otherwise: the one in use,
    /// and those that come next. A stage that is neither recomputed nor captured stays gathered while microbatches are
    /// between its forward and its backward.
    pub fn gathered_stages(mut self, most: usize) -> Self {
        self.gathered = most;
        self
    }

    /// Waits for the device after every task, so that timelines show what tasks took there (for profiling).
    pub fn synchronize(mut self, synchronize: bool) -> Self {
        self.synchronize = synchronize;
        self
    }

    /// Delivers messages between ranks as late as these links would, so that a slower network can be tried out on one
    /// machine: see [`Delayed`](crate::link::Delayed).
    pub fn delayed(mut self, network: LinkCosts) -> Self {
        self.delay = Some(network);
        self
    }

    /// Describes the model (its configuration as text, say): ranks that are processes compare it before they build
    /// their stages, so that one which was started with another model is named at once.
    pub fn model(mut self, description: impl Into<String>) -> Self {
        self.model = Some(description.into());
        self
    }
}
