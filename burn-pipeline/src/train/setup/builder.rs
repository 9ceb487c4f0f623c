//! The builder: everything that the user chooses.

use crate::execute::Tuning;
use crate::layers::Model;
use crate::link::kit::LONGEST_TIMEOUT;
use crate::ranks::GroupSizes;
use crate::stage::{Accumulation, Matmuls, Precision, Reduction, SplitBackward, StageBox};
use crate::train::context::StageContext;
use crate::train::pipeline::Pipeline;
use crate::train::plans::{Replication, Source};
use crate::train::shared::SharedParameter;
use crate::train::step::Settings;
use crate::vocabulary::Vocabulary;
use burn::module::ParamGroup;
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;
use burn_pipeline_plan::cost::{LinkCosts, Partition, Profile};
use burn_pipeline_plan::plan::{Plan, SkipEdge};
use burn_pipeline_plan::schedule::{IntoSchedule, ScheduleError, Size};
use std::sync::Arc;
use std::time::Duration;

pub(crate) type Factory = Arc<dyn Fn(&StageContext) -> StageBox + Send + Sync>;
pub(crate) type Optimizers = Arc<dyn Fn() -> ModuleOptimizer + Send + Sync>;

/// Everything that a pipeline is built from; see [`Pipeline::builder`].
#[derive(Clone)]
pub struct Builder {
    pub(super) source: Option<Result<Source, ScheduleError>>,
    pub(crate) factory: Option<Factory>,
    /// The model, if it is a list of layers.
    pub(crate) layers: Option<Model>,
    pub(crate) optimizers: Option<Optimizers>,
    pub(super) groups: Vec<ParamGroup>,
    pub(crate) settings: Settings,
    pub(crate) devices: Vec<Device>,
    pub(crate) threads: usize,
    pub(crate) timeout: Duration,
    pub(crate) accumulation: Accumulation,
    pub(crate) split: SplitBackward,
    pub(crate) compile: bool,
    pub(crate) matmuls: Matmuls,
    pub(crate) precision: Option<Precision>,
    pub(crate) input_gradients: bool,
    pub(crate) compare_batches: bool,
    pub(crate) shared: Vec<SharedParameter>,
    pub(crate) skips: Vec<SkipEdge>,
    pub(crate) cut: Option<Partition>,
    /// Stages that recompute, whatever their factory chooses.
    pub(crate) recomputing: Vec<usize>,
    pub(crate) seed: Option<u64>,
    pub(crate) tuning: Tuning,
    pub(crate) model: Option<String>,
    pub(crate) replicas: usize,
    /// The tensor-parallel group sizes.
    pub(crate) members: GroupSizes,
    pub(crate) sharded: bool,
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
    pub(crate) fn source(mut self, source: Source) -> Self {
        self.source = Some(Ok(source));
        self
    }

    /// How many ranks run one pipeline rank's row.
    pub(super) fn replication(&self) -> Replication {
        let gathered = self.sharded.then_some(self.gathered);
        Replication { replicas: self.replicas, members: self.members.clone(), gathered }
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            source: None,
            factory: None,
            layers: None,
            optimizers: None,
            groups: Vec::new(),
            settings: Settings::default(),
            devices: vec![Device::default()],
            threads: 1,
            timeout: Duration::from_secs(120),
            accumulation: Accumulation::default(),
            split: SplitBackward::default(),
            compile: false,
            matmuls: Matmuls::F32,
            precision: None,
            input_gradients: false,
            compare_batches: false,
            shared: Vec::new(),
            skips: Vec::new(),
            cut: None,
            recomputing: Vec::new(),
            seed: None,
            tuning: Tuning::default(),
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
    /// Creates a builder.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl Builder {
    /// Runs this schedule at this size: `schedule(OneFOneB, size)`, or by its name, `schedule("1F1B", size)`. An
    /// unknown name is an error of [`Builder::build`]. For a batch with fewer samples than microbatches, a smaller size
    /// is used; if the schedule refuses that size, the batch is refused.
    pub fn schedule(mut self, schedule: impl IntoSchedule, size: Size) -> Self {
        self.source = Some(schedule.into_schedule().map(|schedule| Source::Schedule(Arc::from(schedule), size)));
        self
    }

    /// Runs this plan, only with its own number of microbatches. Transfers are inserted if it has none.
    pub fn plan(mut self, plan: Plan) -> Self {
        self.source = Some(Ok(Source::Plan(Arc::new(plan))));
        self
    }

    /// Sets the function that makes a stage. It is called on the rank that holds the stage, so the whole model never
    /// exists in one place. In a bidirectional placement it is called for both routes; the second takes the first one's
    /// weights.
    pub fn stages(mut self, factory: impl Fn(&StageContext) -> StageBox + Send + Sync + 'static) -> Self {
        self.factory = Some(Arc::new(factory));
        self.layers = None;
        self
    }

    /// Cuts the model's layers in this way, for example as the planner found: [`StageContext::layers`] returns each
    /// stage's share. [`Builder::build`] refuses a cut into another number of stages than the plan's, and a factory
    /// that requests a share of another number of layers.
    pub fn cut(mut self, cut: Partition) -> Self {
        self.cut = Some(cut);
        self
    }

    /// Sets the function that makes each stage's optimizer. Without one, [`Pipeline::step`] is refused;
    /// [`Pipeline::accumulate`] and [`Pipeline::take_gradients`] compute gradients only.
    ///
    /// Its groups (`ModuleOptimizer::with_group`) match the parameters' names in the whole model, from
    /// [`StageBox::named`], so they mean the same on any number of ranks. See [`Builder::parameter_group`].
    pub fn optimizer(mut self, make: impl Fn() -> ModuleOptimizer + Send + Sync + 'static) -> Self {
        self.optimizers = Some(Arc::new(make));
        self
    }

    /// Declares a group of parameters that the optimizer or a learning rate uses: building fails if it matches no
    /// parameter of the whole model. Burn's optimizers do not expose their groups, so a misspelt group that is not
    /// declared here goes unnoticed.
    ///
    /// Groups match by name, because parameter ids differ from rank to rank.
    pub fn parameter_group(mut self, group: ParamGroup) -> Self {
        self.groups.push(group);
        self
    }

    /// Sets what the loss function returns over a microbatch, [`Reduction::Mean`] by default.
    pub fn reduction(mut self, reduction: Reduction) -> Self {
        self.settings.reduction = reduction;
        self
    }

    /// Sets one device for all ranks, or one per rank (autodiff is added). Burn's default device by default.
    pub fn devices(mut self, devices: Vec<Device>) -> Self {
        self.devices = devices;
        self
    }

    /// Sets the number of compute threads of each rank, 1 by default. Each rank has its own pool, because ranks that
    /// share one delay each other.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Sets the longest allowed wait, 120 s by default and at most ten years. Allow for a stage's first run, which may
    /// compile kernels.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.min(LONGEST_TIMEOUT);
        self
    }

    /// The timeout that was set, or the default: for programs that use the link before the pipeline is built.
    pub fn get_timeout(&self) -> Duration {
        self.timeout
    }
}
