//! Burn's own training loop over a pipeline of [`burn_pipeline`]: its `Learner`, metrics, checkpoints, learning-rate
//! schedulers, early stopping and dashboards stay as they are, and forwards and backwards run on several ranks.
//!
//! # What changes in a training program
//!
//! Below is a whole program for Burn's `SupervisedTraining`. The two parts between lines make it a pipeline: how the model is cut, and
//! the strategy. Without the second one it trains on one device, with the same metrics and weights up to rounding.
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
//! // ---- How the model is cut: the layers below the last stage, and the model itself, of fewer layers, as the last one.
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
//!     /// Stages are clones of the model's layers, so that both have the same parameters.
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
//! `examples/learner_cnn.rs` in the repository is the same for a CNN.
//!
//! # Who does what
//!
//! 1. For each item, the pipeline runs forwards and backwards of [`PipelineModel::batch`] and gives the gradients of the whole item.
//! 2. The `Learner` steps its scheduler and its optimizer, clipping included, and the stages take the stepped values over. On one device
//!    both hold the same tensors. So what Burn's checkpointers save and `launch` returns is what was trained.
//! 3. Metrics get [`PipelineModel::outcome`] of the item and of the last stage's outputs, joined to those of the whole item. A loss that
//!    is computed there is that of one device, not an average of microbatches.
//! 4. Validation runs forwards alone. Running statistics, and what `Stage::after_step` changes, come back into the `Learner`'s model after each
//!    epoch.
//!
//! A checkpoint is Burn's own: it goes on under any number of ranks, any schedule, and on one device.
//!
//! # What differs from one device
//!
//! - Numbers are those of one device up to rounding, as gradients are added up by microbatch, if the model treats each sample by
//!   itself. The loss says in `Builder::reduction` what it is over a microbatch: the mean by default. Batch norms see microbatches.
//! - A loss or a gradient that is NaN or infinite ends the training, unless `Builder::on_non_finite` says otherwise.
//! - The builder's `clip_norm` clips by the norm of all gradients, before the optimizer's own clipping of each parameter. Its
//!   `stages`, `optimizer` and `outputs` are set here, whatever it was given.
//! - The optimizer runs on the thread of the training, for all parameters. A `TrainStep::optimize` of your own may change trained parameters only.
//! - `SupervisedTraining::gradient_checkpointing` does not reach a strategy; `StageBox::recomputed` saves memory instead.
//! - Random numbers of forwards (`Builder::seed`) begin anew when training goes on from a checkpoint, as Burn's own do.
//! - Parameters stay where the model has them. Where ranks have devices of their own, `stage` moves its part there
//!   (`fork(&at.device)`); gradients and stepped values then travel, unless the model's own parts are on these devices.
//!
//! # Ranks as processes
//!
//! By default ranks are threads of this process. As processes, over TCP, MPI or NCCL, each runs the same program with its own end of a link:
//!
//! ```no_run
//! # use burn::tensor::Device;
//! # use burn_pipeline::link::{Launch, TcpLink};
//! # use burn_pipeline::{Pipeline, Size};
//! # use burn_pipeline_learner::{PipelineModel, PipelineStrategy};
//! # use burn_train::{Learner, SupervisedTraining};
//! # use std::time::Duration;
//! # fn train<M: PipelineModel>(training: SupervisedTraining<M>, learner: Learner<M>) -> Result<(), Box<dyn std::error::Error>> {
//! let launch = Launch::from_environment()?.ok_or("start me with torchrun or srun, or set RANK and the like")?;
//! let link = TcpLink::connect(&launch.rendezvous()?, Device::flex(), Duration::from_secs(60))?;
//! let ranks = Pipeline::builder().schedule("1F1B", Size::new(launch.ranks, 8)).devices(vec![Device::flex()]);
//! let result = PipelineStrategy::of_rank(ranks, Box::new(link)).on(training).launch(learner);
//! # Ok(())
//! # }
//! ```
//!
//! - At the start all processes take over rank 0's learner: weights, the state of optimizer and scheduler, numbers of epochs, accumulation.
//!   So initial values need no seed, and a checkpoint that rank 0 has loaded counts for all.
//! - Rank 0 has the metrics, the dashboard, the log, checkpoints and early stopping; [`PipelineStrategy::on`] takes dashboard and log from the
//!   others. They go through the same epochs, and stop where it stops. An interruption of any process stops all after the same item.
//! - Each process holds the whole model, gets all gradients, and steps all parameters, so each returns the trained model. A model that no process can hold
//!   needs `Pipeline` without a `Learner`.
//! - Each process runs its own data loaders, which must give the same items in the same order: a shuffle has its seed, but the batches
//!   of `num_workers` come as they are ready. Processes compare the values of each batch before they run it, learning rates after each
//!   item, and weights after each epoch, by checksums; what differs ends the training with an error that says on which rank.
//! - A process that fails or is lost ends the trainings of all others with an error that names it. No wait takes longer than
//!   `Builder::timeout`; so between two items none may be busy for longer, with a checkpoint, say.
//!
//! # Failures
//!
//! A stage that panics, a rank that does not answer and a cut that leaves out a layer end the training, with the model as it was
//! trained so far. `LearningResult::error` names rank, stage, microbatch and operation.

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
