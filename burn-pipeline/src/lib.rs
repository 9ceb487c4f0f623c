//! Pipeline parallelism for the [Burn](https://burn.dev) deep learning framework.
//!
//! A model that is too large for one device is cut into *stages*. Each stage is an ordinary Burn module on its own
//! *rank* (a thread or process with its device). Every batch goes through the stages in *microbatches*. The order of
//! the work is data, a [`Plan`]: a schedule builds it, passes rewrite it, [`check`](plan::Plan::check) proves it free
//! of deadlocks, a simulator estimates its time and memory, and one interpreter runs it. Loss, gradients and weights
//! equal those of one device on the same microbatches, and every wait has a timeout.
//!
//! # The smallest whole program
//!
//! Two stages on two ranks, which are threads of this process, learn a sine:
//!
//! ```
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::AdamWConfig;
//! use burn::tensor::{Device, Int, Tensor, activation::tanh};
//! use burn_pipeline::{Batch, Layer, Pipeline, Sequential, Size};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // A layer: its name, a function that makes its module on the rank that holds it, and its forward.
//!     let curved = |layer: &Linear, x: Tensor<2>| tanh(layer.forward(x));
//!     let model = Sequential::new()
//!         .then(Layer::new("up", |at| LinearConfig::new(1, 32).init(&at.device), curved))
//!         .repeat(2, Layer::new("inner", |at| LinearConfig::new(32, 32).init(&at.device), curved))
//!         .then(Layer::new("down", |at| LinearConfig::new(32, 1).init(&at.device), Linear::forward))
//!         .loss(|y: Tensor<2>, target: Tensor<2>| (y - target).square().mean());
//!
//!     let device = Device::flex();
//!     let mut pipeline = Pipeline::builder()
//!         .schedule("1F1B", Size::new(2, 4)) // two ranks, four microbatches
//!         .layers(model)
//!         .optimizer(|| AdamWConfig::new().init())
//!         .devices(vec![device.clone()])
//!         .build()?;
//!
//!     let x = Tensor::<1, Int>::arange(0..64, &device).float().div_scalar(10.0).reshape([64, 1]);
//!     let mut losses = Vec::new();
//!     for _ in 0..30 {
//!         let report = pipeline.step(Batch::new(x.clone()).target(x.clone().sin()), 1e-2)?;
//!         losses.push(report.loss);
//!     }
//!     assert!(losses[29] < 0.5 * losses[0], "it learns: {losses:?}");
//!     Ok(())
//! }
//! ```
//!
//! # Where to read on
//!
//! The [guide](_guide) goes from a model of your own to many machines; each chapter answers one question. The
//! modules, in reading order:
//!
//! | module | contents |
//! |---|---|
//! | [`stage`] | what a user implements: [`Stage`], batches, losses |
//! | [`layers`] | a model as a list of layers, cut anywhere |
//! | [`payload`] | what crosses between stages and ranks: tensors of any kind, plain values, specs |
//! | [`train`] | what a user calls: [`Pipeline`], its [`Builder`], reports, checkpoints, a schedule by measured costs |
//! | [`schedule`] | the schedules, from GPipe to DualPipeV, and the trait to add one |
//! | [`plan`] | the plan itself, its text forms, and the proof |
//! | [`pass`] | rewriting plans: transfers, waits, overlap, sharding |
//! | [`page`] | predicted and measured steps, memory and choices as one HTML page |
//! | [`simulate`], [`cost`], [`planner`] | predicted time and memory of a plan, the costs behind them, the best plan |
//! | [`trace`] | timelines, predicted and measured, as Chrome JSON, SVG and text |
//! | [`link`] | how ranks reach each other: threads, TCP, and the kit for transports of your own |
//! | [`nn`], [`tensor_parallel`] | layers of tensor-parallel groups, and what their members exchange |
//! | [`ops`] | layers whose weight gradients can be computed later, in `W` |
//! | [`program`] | a captured stage, split into `F`, `I` and `W` |
//! | [`execute`] | the interpreter of a rank's row of the plan |
//!
//! The modules from `schedule` to `trace` are those of the crate `burn-pipeline-plan`, which does not depend on Burn.
//! Ranks over MPI and NCCL are in the crates `burn-pipeline-mpi` and `burn-pipeline-nccl`, mixtures of experts in
//! `burn-pipeline-moe`, and Burn's own training loop over a pipeline in `burn-pipeline-learner`.

pub mod _guide;
mod data_parallel;
pub mod execute;
pub mod layers;
pub mod link;
pub mod nn;
pub mod ops;
mod panics;
pub mod payload;
pub mod program;
mod ranks;
mod scoped;
pub mod stage;
pub mod tensor_parallel;
pub mod train;
mod transparent;
mod vocabulary;

#[doc(hidden)]
pub use burn_pipeline_plan::debug_as_text;
pub use burn_pipeline_plan::{cost, page, pass, plan, planner, schedule, simulate, trace};

// The items that nearly every program uses.
pub use burn_pipeline_plan::plan::Plan;
pub use burn_pipeline_plan::schedule::{Schedule, Size};
pub use layers::{Layer, Sequential};
pub use stage::{Accumulation, Batch, Loss, Matmuls, Precision, Reduction, Stage, StageBox, init_seeded};
pub use train::{AutoPipeline, Builder, Checkpoints, Pipeline, StageContext, StepReport};
pub use vocabulary::Vocabulary;
