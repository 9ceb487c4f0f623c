//! Setting a pipeline up: everything that the user chooses.

use crate::cost::{LinkCosts, Partition, Profile};
use crate::execute::FusedActions;
use crate::group::GroupSizes;
use crate::plan::{Plan, SkipEdge};
use crate::schedule::{IntoSchedule, ScheduleError, Size};
use crate::stage::{Accumulation, PROGRAMS, Reduction, SplitBackward, StageBox, Validate};
use crate::train::context::StageContext;
use crate::train::non_finite::OnNonFinite;
use crate::train::pipeline::Pipeline;
use crate::train::plans::{Replication, Source, Spreading};
use crate::train::shared::SharedParameter;
use crate::train::step::Settings;
use crate::vocabulary::Vocabulary;
use burn::module::ParamGroup;
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
    pub(super) groups: Vec<ParamGroup>,
    pub(crate) reduction: Reduction,
    pub(crate) devices: Vec<Device>,
    pub(crate) threads: usize,
    pub(crate) timeout: Duration,
    pub(crate) clip_norm: Option<f64>,
    pub(crate) on_non_finite: OnNonFinite,
    pub(crate) accumulation: Accumulation,
    pub(crate) synchronize: bool,
    pub(crate) split: SplitBackward,
    pub(crate) captured_programs: usize,
    pub(crate) compile: bool,
    pub(crate) bf16_products: bool,
    pub(crate) keep_outputs: bool,
    pub(crate) outputs: bool,
    pub(crate) compare_batches: bool,
    pub(crate) shared: Vec<SharedParameter>,
    pub(crate) skips: Vec<SkipEdge>,
    pub(crate) cut: Option<Partition>,
    /// Stages that recompute, whatever their factory says of them.
    pub(crate) recomputing: Vec<usize>,
    pub(crate) validate: Validate,
    pub(crate) seed: Option<u64>,
    pub(crate) merge_weights: bool,
    pub(crate) fused: FusedActions,
    pub(crate) model: Option<String>,
    pub(crate) replicas: usize,
    /// Ranks that hold each stage together.
    pub(crate) members: GroupSizes,
    pub(crate) sharded: bool,
    /// Layers of which every rank has a piece.
    pub(crate) vocabulary: Option<Vocabulary>,
    pub(crate) gathered: usize,
    pub(crate) delay: Option<LinkCosts>,
    pub(super) planned: Option<Profile>,
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

    /// How many ranks run one pipeline rank's row.
    pub(super) fn replication(&self) -> Replication {
        let gathered = self.sharded.then_some(self.gathered);
        Replication { replicas: self.replicas, members: self.members.clone(), gathered }
    }

    /// What plans spread over all ranks, and by which costs.
    pub(super) fn spreading(&self) -> Spreading {
        let pieces = self.vocabulary.as_ref().map(Vocabulary::layers).unwrap_or_default();
        Spreading { pieces, profile: self.planned.clone() }
    }

    /// What all ranks do alike.
    pub(super) fn settings(&self) -> Settings {
        let Self { reduction, clip_norm, on_non_finite, validate, outputs, .. } = *self;
        Settings { reduction, clip_norm, on_non_finite, validate, outputs }
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            source: None,
            factory: None,
            optimizers: None,
            groups: Vec::new(),
            reduction: Reduction::default(),
            devices: vec![Device::default()],
            threads: 1,
            timeout: Duration::from_secs(120),
            clip_norm: None,
            on_non_finite: OnNonFinite::default(),
            accumulation: Accumulation::default(),
            synchronize: false,
            split: SplitBackward::default(),
            captured_programs: PROGRAMS,
            compile: false,
            bf16_products: false,
            keep_outputs: false,
            outputs: false,
            compare_batches: false,
            shared: Vec::new(),
            skips: Vec::new(),
            cut: None,
            recomputing: Vec::new(),
            validate: Validate::Off,
            seed: None,
            merge_weights: false,
            fused: FusedActions::default(),
            model: None,
            replicas: 1,
            members: GroupSizes::from(1),
            sharded: false,
            vocabulary: None,
            gathered: 3,
            delay: None,
            planned: None,
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
    /// no family has is an error of [`Builder::build`]. A batch of fewer samples than microbatches
    /// asks the family for a smaller size; if the family refuses that size, the batch is refused.
    pub fn schedule(mut self, schedule: impl IntoSchedule, size: Size) -> Self {
        self.source = Some(schedule.into_schedule().map(|schedule| Source::Schedule(Arc::from(schedule), size)));
        self
    }

    /// Runs this plan, with its number of microbatches and no other. Transfers are inserted if it has none.
    pub fn plan(mut self, plan: Plan) -> Self {
        self.source = Some(Ok(Source::Plan(Arc::new(plan))));
        self
    }

    /// The function that makes a stage. It is called on the rank that holds the stage, so the whole model never exists in
    /// one place. In a bidirectional placement it is called for both replicas; the second takes the first's weights.
    pub fn stages(mut self, factory: impl Fn(&StageContext) -> StageBox + Send + Sync + 'static) -> Self {
        self.factory = Some(Arc::new(factory));
        self
    }

    /// Cuts the model's layers in this way (as the planner found it, say): [`StageContext::layers`] gives each stage its share.
    /// A factory that asks for another number of layers, or builds another number of stages, is not affected.
    pub fn cut(mut self, cut: Partition) -> Self {
        self.cut = Some(cut);
        self
    }

    /// The function that makes each stage's optimizer. Without one, `step` leaves weights as they are, forgets gradients,
    /// and warns once; read them with [`Pipeline::accumulate`] and [`Pipeline::take_gradients`].
    ///
    /// Its groups (`ModuleOptimizer::with_group`) match the parameters' names in the whole model, as
    /// [`StageBox::named`] gives them; so they mean the same on any number of ranks. See [`Builder::parameter_group`].
    pub fn optimizer(mut self, make: impl Fn() -> ModuleOptimizer + Send + Sync + 'static) -> Self {
        self.optimizers = Some(Arc::new(make));
        self
    }

    /// Declares a group of parameters that the optimizer or a learning rate uses: building fails if it matches no parameter
    /// of the whole model. Burn's optimizers do not show their groups, so a misspelt one that is not declared here goes unnoticed.
    ///
    /// Groups match by name; identifiers of parameters differ from rank to rank.
    pub fn parameter_group(mut self, group: ParamGroup) -> Self {
        self.groups.push(group);
        self
    }

    /// What the loss function returns over a microbatch, [`Reduction::Mean`] by default.
    pub fn reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = reduction;
        self
    }

    /// One device for all ranks, or one for each rank (autodiff is added). Burn's default device by default.
    pub fn devices(mut self, devices: Vec<Device>) -> Self {
        self.devices = devices;
        self
    }

    /// Compute threads of each rank, 1 by default. Each rank has its own pool, since ranks that share one delay each other.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// The longest that any wait may take, 120 s by default. A stage's first run may compile kernels, so leave it time.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The timeout that was set, or the one by default: for programs that use the link before the pipeline is built.
    pub fn get_timeout(&self) -> Duration {
        self.timeout
    }

    /// Clips gradients to this norm, above 0, taken over all ranks. Infinity never clips: the norm is only reported and looked
    /// at ([`Builder::on_non_finite`]).
    pub fn clip_norm(mut self, norm: f64) -> Self {
        self.clip_norm = Some(norm);
        self
    }

    /// What training does where a loss is NaN or infinite: an error by default. It covers the loss of every microbatch and,
    /// with [`Builder::clip_norm`], the norm of all gradients.
    pub fn on_non_finite(mut self, action: OnNonFinite) -> Self {
        self.on_non_finite = action;
        self
    }

    /// The order in which gradients of microbatches are added: as they come by default. With `Ordered`, every schedule
    /// gives the same bits.
    pub fn accumulation(mut self, accumulation: Accumulation) -> Self {
        self.accumulation = accumulation;
        self
    }

    /// How stages run split backwards, [`SplitBackward::Auto`] by default; [`Pipeline::engines`] tells how each stage runs,
    /// and why.
    pub fn split(mut self, split: SplitBackward) -> Self {
        self.split = split;
        self
    }

    /// How many programs each captured stage keeps, 64 by default, 1 at least: one for each shape of its inputs and each
    /// combination of values that its forward reads from the host. The least recently used one goes first; what comes again
    /// after that is made again (see [`SplitBackward`] for the cost). The numbers are the same whatever the limit.
    pub fn captured_programs(mut self, limit: usize) -> Self {
        self.captured_programs = limit;
        self
    }

    /// Compiles captured stages on processors (`Device::flex`); off by default. Stages are then captured even where the plan does
    /// not split, unless [`SplitBackward::Eager`] is asked for.
    ///
    /// Element-wise operations, softmax, norms and their backwards run fused, tile by tile in cache, and of a softmax or a layer norm
    /// one tensor less is held for the backward, or two. A compiled stage gives the same bits under every schedule, number of
    /// ranks and cut (but one inside of a softmax or a norm), but not those of the plain loop: it rounds otherwise, by a few
    /// units in the last place in each operation. A stage that cannot be captured runs as the plain loop does, so where only some
    /// layers can be, the cut decides what is compiled. [`Pipeline::engines`] says what was, and why the rest was not.
    pub fn compile(mut self, compile: bool) -> Self {
        self.compile = compile;
        self
    }

    /// Compiles captured stages, as [`Builder::compile`], and rounds the operands of their matrix products to `bf16`, where the
    /// processor multiplies those faster than `f32` (AVX512-BF16); off by default.
    ///
    /// This is mixed precision: products are summed in `f32`, and all else is `f32`: weights, gradients, the optimizer, softmax and norms.
    /// What a forward holds for its backward as an operand of products alone is held in `bf16`, which takes half of the memory and changes
    /// nothing more. The bits are those of a compiled stage: the same under every schedule, number of ranks and cut. Against `f32` each
    /// operand is off by 2⁻⁹ of itself at most. Evaluation runs the plain forward, in `f32`, and so does a stage that cannot be captured
    /// ([`Pipeline::engines`] names it).
    ///
    /// On another processor or device the pipeline is not built, and neither is one with [`Builder::merge_weights`], whose products are
    /// not compiled.
    pub fn bf16_products(mut self, rounded: bool) -> Self {
        self.bf16_products = rounded;
        self
    }

    /// Holds the outputs of stages until their backward, as a plain autodiff loop does, instead of releasing them once they
    /// were sent. For measuring what the release saves.
    pub fn keep_outputs(mut self, keep: bool) -> Self {
        self.keep_outputs = keep;
        self
    }

    /// Gives the last stage's outputs with the report of every training step ([`StepReport::output`](crate::StepReport::output)), for
    /// metrics; off by default, as it keeps them until the step is over. Where ranks are processes, each says it for itself: outputs
    /// travel to the processes that asked for them, and to no other.
    pub fn outputs(mut self, outputs: bool) -> Self {
        self.outputs = outputs;
        self
    }

    /// Where ranks are processes: compares their batches before each call, by a checksum of all values, so that data loaders that give
    /// other items are an error and not other numbers. Off by default, as every process reads its whole batch off its device.
    pub fn compare_batches(mut self, compare: bool) -> Self {
        self.compare_batches = compare;
        self
    }

    /// Declares a skip edge: a value goes from stage `from` straight to stage `to`, past those between. Stage `from` has a
    /// [`Skip`](crate::stage::Skip) in its output, and stage `to` one in its input.
    pub fn skip(mut self, from: usize, to: usize) -> Self {
        self.skips.push(SkipEdge { from, to });
        self
    }

    /// Compares the specs of tensors at stage boundaries with the stages' metadata while training; off by default. See
    /// [`StageMetadata`](crate::stage::StageMetadata) for where metadata come from.
    pub fn validate(mut self, validate: Validate) -> Self {
        self.validate = validate;
        self
    }

    /// Declares a parameter that several stages hold: its copies start equal and get the sum of all their gradients.
    /// [`Pipeline::shared`] tells where it was found. Where several ranks hold stages together, all groups that hold a copy have one size, and cut
    /// it alike.
    pub fn share(mut self, parameter: SharedParameter) -> Self {
        self.shared.push(parameter);
        self
    }

    /// Seeds the random numbers (dropout, noise) of every training forward by this seed, the batch's number, the stage and
    /// the microbatch alone. So a resumed job draws the same numbers, whatever the schedule and whatever other threads draw.
    ///
    /// For that stages are captured even where the plan does not split (unless [`SplitBackward::Eager`] is asked for), and
    /// draw on the host: on a GPU their random numbers are copied there. Stages that cannot be captured draw from Burn's one
    /// generator: their forwards run one at a time in a process, once more to learn what they draw, and again where another thread drew
    /// meanwhile. On a GPU such a stage is refused if it draws. A step ends with [`StageError::Draws`](crate::stage::StageError::Draws)
    /// where others draw each time, and where captured forwards draw on a device that they name themselves. To find that out, steps
    /// seed the devices' generators: draw data from a generator of your own.
    ///
    /// In stages that several ranks hold together ([`Builder::tensor_parallel`]) [`GroupDropout`](crate::nn::GroupDropout) alone may draw, captured or
    /// not; a step with other draws ends with [`StageError::DrawsInGroup`](crate::stage::StageError::DrawsInGroup).
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Runs adjacent `W`s of one stage at once: each product of a captured stage's linear layers then covers the rows of
    /// several microbatches, wherever that moves fewer bytes (many short microbatches, wide layers). Sums are added in
    /// another order, so gradients differ by rounding; it cannot be combined with [`Accumulation::Ordered`].
    pub fn merge_weights(mut self, merge: bool) -> Self {
        self.merge_weights = merge;
        self
    }

    /// How fused actions (`OVERLAP_F_B`, as DualPipe has them) are run, [`FusedActions::Auto`] by default.
    pub fn fused(mut self, fused: FusedActions) -> Self {
        self.fused = fused;
        self
    }

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
    /// between the two. Schedules and plans are rewritten for it ([`Plan::with_vocabulary`]), by the costs given to
    /// [`Builder::planned_with`] if they have those of a vocabulary, and by rough ones otherwise; a plan that spreads the same
    /// layers already is run as it is.
    ///
    /// Losses and gradients are those of the ordinary layers up to the rounding of sums that are added in parts, and the same bits in
    /// every run. Checkpoints and exports hold the ordinary layers' parameters. In what lists the model's stages
    /// ([`Pipeline::weights`], say) the embedding and the head come last, as two more (as one, if they are one matrix). Evaluations give the last stage's
    /// outputs, not scores. What is not there yet is refused: bidirectional schedules, [`Reduction::Weighted`],
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
    /// stage can override this ([`StageBox::sharded`]).
    ///
    /// With [`Accumulation::Ordered`], whole sums go from replica to replica after each batch, and pieces are kept between
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
