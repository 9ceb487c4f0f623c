//! Burn's own training loop over a pipeline of [`burn_pipeline`]. Its `Learner`, metrics, checkpoints, learning-rate
//! schedulers, early stopping and dashboards stay as they are; forwards and backwards run on several ranks.
//!
//! # What changes in a training program
//!
//! Below is a whole program for Burn's `SupervisedTraining`. Two parts, between `----` lines, make it a pipeline: how
//! the model is cut, and the strategy. Without the strategy it trains on one device, with the same metrics and weights
//! up to rounding.
//!
//! ```
//! use burn::data::dataloader::{DataLoaderBuilder, batcher::Batcher};
//! use burn::data::dataset::InMemDataset;
//! use burn::lr_scheduler::constant::ConstantLr;
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::AdamConfig;
//! use burn::tensor::{Device, Tensor, activation::tanh};
//! use burn_pipeline::{Batch, Pipeline, Size, Stage, StageBox, StageContext};
//! use burn_pipeline_learner::{PipelineModel, PipelineStrategy};
//! use burn_train::metric::LossMetric; // `burn::train`, with Burn's feature `train`
//! use burn_train::{InferenceStep, Learner, RegressionOutput, SupervisedTraining, TrainOutput, TrainStep};
//!
//! #[derive(Module, Debug)]
//! struct Model {
//!     layers: Vec<Linear>,
//!     head: Linear,
//! }
//!
//! fn hidden(layers: &[Linear], x: Tensor<2>) -> Tensor<2> {
//!     layers.iter().fold(x, |x, layer| tanh(layer.forward(x)))
//! }
//!
//! impl Model {
//!     fn forward(&self, x: Tensor<2>) -> Tensor<2> {
//!         self.head.forward(hidden(&self.layers, x))
//!     }
//! }
//!
//! fn loss(y: Tensor<2>, wanted: Tensor<2>) -> Tensor<1> {
//!     (y - wanted).square().mean()
//! }
//!
//! fn outcome(y: Tensor<2>, wanted: Tensor<2>) -> RegressionOutput {
//!     RegressionOutput::new(loss(y.clone(), wanted.clone()), y, wanted)
//! }
//!
//! #[derive(Clone, Debug)]
//! struct Points {
//!     x: Tensor<2>,
//!     wanted: Tensor<2>,
//! }
//!
//! impl TrainStep for Model {
//!     type Input = Points;
//!     type Output = RegressionOutput;
//!
//!     fn step(&self, item: Points) -> TrainOutput<RegressionOutput> {
//!         let outcome = outcome(self.forward(item.x), item.wanted);
//!         TrainOutput::new(self, outcome.loss.backward(), outcome)
//!     }
//! }
//!
//! impl InferenceStep for Model {
//!     type Input = Points;
//!     type Output = RegressionOutput;
//!
//!     fn step(&self, item: Points) -> RegressionOutput {
//!         outcome(self.forward(item.x), item.wanted)
//!     }
//! }
//!
//! struct PointBatcher;
//!
//! impl Batcher<f32, Points> for PointBatcher {
//!     fn batch(&self, items: Vec<f32>, device: &Device) -> Points {
//!         let x = Tensor::<1>::from_floats(items.as_slice(), device).reshape([items.len(), 1]);
//!         Points { wanted: x.clone().sin(), x }
//!     }
//! }
//!
//! // ---- How the model is cut: `Lower` holds the lower layers; the last stage is a `Model` with the remaining layers.
//! #[derive(Module, Debug)]
//! struct Lower {
//!     layers: Vec<Linear>,
//! }
//!
//! impl Stage for Lower {
//!     type Input = Tensor<2>;
//!     type Extra = ();
//!     type Output = Tensor<2>;
//!
//!     fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
//!         hidden(&self.layers, x)
//!     }
//! }
//!
//! impl Stage for Model {
//!     type Input = Tensor<2>;
//!     type Extra = ();
//!     type Output = Tensor<2>;
//!
//!     fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
//!         self.forward(x)
//!     }
//! }
//!
//! impl PipelineModel for Model {
//!     type LastOutput = Tensor<2>;
//!
//!     /// Stages hold clones of the model's layers, so both have the same parameters.
//!     fn stage(&self, at: &StageContext) -> StageBox {
//!         let layers = self.layers[at.layers(self.layers.len())].to_vec();
//!         match at.is_last() {
//!             false => StageBox::new(Lower { layers }),
//!             true => StageBox::with_loss(Model { layers, head: self.head.clone() }, loss),
//!         }
//!     }
//!
//!     fn batch(item: &Points) -> Batch {
//!         Batch::new(item.x.clone()).target(item.wanted.clone())
//!     }
//!
//!     /// `y` is the last stage's output for the whole item.
//!     fn outcome(item: Points, y: Tensor<2>) -> RegressionOutput {
//!         outcome(y, item.wanted)
//!     }
//! }
//! // ----
//!
//! let device = Device::flex().autodiff();
//! let linear = |from, to| LinearConfig::new(from, to).init(&device);
//! let model = Model { layers: vec![linear(1, 16), linear(16, 16), linear(16, 16)], head: linear(16, 1) };
//! let learner = Learner::new(model, AdamConfig::new().init(), ConstantLr::new(1e-2));
//! let points = |count: u16| InMemDataset::new((0..count).map(|i| f32::from(i) / 10.0).collect());
//! let train = DataLoaderBuilder::new(PointBatcher).batch_size(16).shuffle(1).build(points(64));
//! let valid = DataLoaderBuilder::new(PointBatcher).batch_size(16).build(points(32));
//!
//! # let folder = std::env::temp_dir().join(format!("burn-pipeline-learner-page-{}", std::process::id()));
//! # let runs = &folder;
//! # /*
//! let runs = "runs/sine";
//! # */
//! let result = SupervisedTraining::new(runs, train, valid)
//!     .metrics((LossMetric::new(),))
//!     .num_epochs(3)
//!     // ---- The strategy: two ranks, four microbatches.
//!     .with_training_strategy(
//!         PipelineStrategy::new(
//!             Pipeline::builder().schedule("1F1B", Size::new(2, 4)).devices(vec![Device::flex()]),
//!         )
//!         .into(),
//!     )
//!     // ----
//! #   .with_application_logger(None)
//!     .launch(learner);
//! assert!(result.error.is_none());
//! # std::fs::remove_dir_all(folder)?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! `examples/learner_cnn.rs` in the repository does the same for a CNN.
//!
//! # Steps of an item
//!
//! 1. For each item, the pipeline runs forwards and backwards of [`PipelineModel::batch`] and returns the gradients of
//!    the whole item.
//! 2. The `Learner` steps its scheduler and its optimizer, including clipping, and the stages take over the stepped
//!    values. On one device both share the same tensors. So Burn's checkpointers save, and `launch` returns, the
//!    trained weights.
//! 3. Metrics get [`PipelineModel::outcome`] of the item and of the last stage's outputs, joined to those of the whole
//!    item. A loss computed there is that of one device, not an average over microbatches.
//! 4. Validation runs forwards only. After each epoch the `Learner`'s model gets the running statistics, and the frozen
//!    parameters that `Stage::after_step` changed. What a rule changes in a trained parameter is lost with the
//!    next step: change it in `TrainStep::optimize`.
//!
//! Checkpoints are Burn's own: they can be resumed with any number of ranks and any schedule, and on one device.
//!
//! # Differences from one device
//!
//! - Numbers match one device up to rounding if the model treats each sample by itself; gradients are summed by
//!   microbatch. `Builder::reduction` says what the loss of a microbatch is, the mean by default. Batch norms see
//!   microbatches.
//! - A loss or gradient that is NaN or infinite ends the training, unless `Builder::on_non_finite` says otherwise.
//! - The builder's `clip_norm` clips the gradients of each item by the norm of all of them, before items accumulate and
//!   the optimizer clips each parameter. This crate overrides the builder's `stages`, `optimizer` and
//!   `outputs`.
//! - The optimizer runs on the training thread, for all parameters. Your own `TrainStep::optimize` may change only
//!   trained parameters.
//! - `SupervisedTraining::gradient_checkpointing` has no effect under a strategy; use `StageBox::recomputed` to save
//!   memory.
//! - Random numbers of forwards (`Builder::seed`) and the loss scale of f16 restart when training resumes: Burn's
//!   checkpoints do not hold them. While the scale is too large, items are skipped; `Precision::loss_scale` sets it.
//! - For `Builder::precision`, create the model in f32; stages round copies. f16 gradients that overflow are dropped.
//! - Parameters stay on the model's device. If ranks have their own devices, `stage` moves its part there
//!   (`fork(&at.device)`); gradients and stepped values are then copied between devices, unless the model's parts
//!   already are on these devices.
//!
//! # Ranks as processes
//!
//! By default ranks are threads of this process. Over TCP, MPI or NCCL, each rank is a process that runs the same
//! program with its own end of a link:
//!
//! ```no_run
//! # use burn::tensor::Device;
//! # use burn_pipeline::link::{Launch, TcpLink};
//! # use burn_pipeline::{Pipeline, Size};
//! # use burn_pipeline_learner::{PipelineModel, PipelineStrategy};
//! # use burn_train::{Learner, SupervisedTraining};
//! # use std::time::Duration;
//! # fn train<M: PipelineModel>(
//! #     training: SupervisedTraining<M>,
//! #     learner: Learner<M>,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let launch = Launch::from_environment()?.ok_or("start me with torchrun or srun, or set RANK and the like")?;
//! let link = TcpLink::connect(&launch.rendezvous()?, Device::flex(), Duration::from_secs(60))?;
//! let ranks = Pipeline::builder().schedule("1F1B", Size::new(launch.ranks, 8)).devices(vec![Device::flex()]);
//! let result = PipelineStrategy::of_rank(ranks, Box::new(link)).on(training).launch(learner);
//! # Ok(())
//! # }
//! ```
//!
//! - At the start all processes take over rank 0's learner: weights, optimizer and scheduler state, number of epochs,
//!   accumulation. So initial values need no seed, and a checkpoint loaded by rank 0 applies to all: set
//!   `.checkpoint(epoch)` on rank 0 alone, unless all processes see its folder (Burn loads it on each that has it set).
//! - Rank 0 has the metrics, the dashboard, the log, checkpoints and early stopping; [`PipelineStrategy::on`] removes
//!   dashboard and log from the others. They run the same epochs and stop when rank 0 stops. Interrupting any process
//!   stops all after the same item.
//! - Each process holds the whole model, gets all gradients and steps all parameters, so each returns the trained
//!   model. If the model does not fit into one process, use `Pipeline` without a `Learner`.
//! - Each process runs its own data loaders, which must give the same items in the same order. A shuffle is seeded, but
//!   with `num_workers` batches arrive in any order. Processes compare checksums of each batch's values before they run
//!   it, learning rates after each item, and checksums of weights after each epoch; a difference ends the training with
//!   an error that names the rank.
//! - A process that fails or is lost ends the training of all others with an error that names it. Waits end at
//!   `Builder::timeout`. If a process is busy between two items, for example with a checkpoint, the others' waits are
//!   extended by another timeout, at most sixty times.
//!
//! # Failures
//!
//! A stage that panics, a rank that does not respond, or a cut that leaves out a layer ends the training; the model
//! keeps the weights trained so far. `LearningResult::error` names rank, stage, microbatch and operation.

mod epoch;
mod error;
mod model;
mod parameters;
mod session;
mod silent;
mod state;
mod strategy;

pub use model::PipelineModel;
pub use strategy::PipelineStrategy;
