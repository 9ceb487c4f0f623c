//! Mixture-of-experts transformers as stages of [`burn_pipeline`].
//!
//! The crate has routers, experts, transformer blocks, mixture of depths and multi-token prediction, with the auxiliary
//! losses that keep experts balanced. On CubeCL devices (CUDA, WebGPU, CPU) routing and experts run as kernels without
//! padding; elsewhere the same operations are composed of Burn's own. Every layer splits its backward, so zero-bubble
//! schedules work, and the auxiliary losses of all stages have the same weight as on one device.
//!
//! # The smallest whole program
//!
//! A stage is one block with four experts. It *injects* its auxiliary losses into the hidden states that it returns:
//!
//! ```
//! use burn::module::Module;
//! use burn::optim::AdamWConfig;
//! use burn::tensor::{Device, Distribution, Tensor};
//! use burn_pipeline::stage::LOSS_SEED;
//! use burn_pipeline::{Batch, Pipeline, Size, Stage, StageBox, StageContext};
//! use burn_pipeline_moe::auxiliary::{AuxiliaryLosses, AuxiliaryWeights};
//! use burn_pipeline_moe::layers::{
//!     AttentionConfig, AttentionContext, Block, BlockConfig, BlockKind, MixtureOfExpertsConfig,
//! };
//!
//! const BLOCKS: [BlockKind; 2] = [BlockKind::Experts; 2];
//!
//! #[derive(Module, Debug)]
//! struct Part {
//!     block: Block,
//!     #[module(skip)]
//!     losses: AuxiliaryLosses,
//! }
//!
//! impl Stage for Part {
//!     type Input = Tensor<3>;
//!     type Extra = Tensor<1>;
//!     type Output = Tensor<3>;
//!
//!     /// Every stage that names the seed of the microbatch's loss gets it.
//!     fn extras(&self) -> Vec<&'static str> {
//!         vec![LOSS_SEED]
//!     }
//!
//!     fn forward(&self, x: Tensor<3>, seed: Tensor<1>) -> Tensor<3> {
//!         let [batch, seq, _] = x.dims();
//!         let context = AttentionContext::new(Tensor::zeros([batch, seq], &x.device())); // one document
//!         let (y, auxiliary) = self.block.forward(x, &context);
//!         self.losses.inject(y, &[auxiliary], seed)
//!     }
//! }
//!
//! fn stage(at: &StageContext) -> StageBox {
//!     let experts = MixtureOfExpertsConfig::new(16, 8, 4); // widths of tokens and experts, number of experts
//!     let config = BlockConfig::new(AttentionConfig::new(16, 2), 32, experts);
//!     let part = Part {
//!         block: config.init(BLOCKS[at.index], &at.device),
//!         losses: AuxiliaryLosses::new(AuxiliaryWeights::new(), &BLOCKS),
//!     };
//!     match at.is_last() {
//!         false => StageBox::new(part),
//!         true => StageBox::with_loss(part, |y: Tensor<3>, target: Tensor<3>| (y - target).square().mean()),
//!     }
//! }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let device = Device::flex();
//!     let mut pipeline = Pipeline::builder()
//!         .schedule("1F1B", Size::new(2, 2)) // two ranks, two microbatches
//!         .stages(stage)
//!         .optimizer(|| AdamWConfig::new().init())
//!         .devices(vec![device.clone()])
//!         .build()?;
//!     let x = Tensor::<3>::random([4, 6, 16], Distribution::Default, &device);
//!     let report = pipeline.step(Batch::new(x.clone()).target(x), 1e-3)?;
//!     assert!(report.loss.is_finite());
//!     Ok(())
//! }
//! ```
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | [`router`] | scores, top-k choice, gates, and the dispatch of tokens to experts |
//! | [`layers`] | experts, attention, blocks, mixture of depths, multi-token prediction, structure embeddings |
//! | [`losses`] | load-balancing loss, router z-loss and the router loss of mixture of depths, as plain functions |
//! | [`auxiliary`] | these losses averaged over the whole model, injected on each stage, and reported |
//! | [`balance`] | balancing without a loss, by a bias that is updated after every step |
//! | [`extras`] | document ids, masks and other inputs of stages beside hidden states |
//! | [`lengths`] | rows of different lengths: excludes padding from attention and loss |
//! | [`cache`] | key-value cache for generation |
//! | [`cost`] | blocks as layers for partitioners and the planner |
//! | [`ops`] | the operations below: routing, permutation of tokens, grouped matmuls, injection |
//!
//! # Auxiliary losses in a pipeline
//!
//! Only the last stage computes the main loss, but every stage has routers. A stage *injects* the auxiliary losses of
//! its layers into its hidden states: the forward is the identity, and the backward gives each loss its own gradient.
//! That gradient must be scaled like the main loss of the same microbatch, so every stage that names
//! [`LOSS_SEED`](burn_pipeline::stage::LOSS_SEED) among its extras gets that loss's seed. Cutting, accumulation and
//! scaling then treat both alike, and gradients equal those of `main + auxiliary` on one device.

pub mod auxiliary;
pub mod balance;
pub mod cache;
pub mod cost;
pub mod extras;
pub mod layers;
pub mod lengths;
pub mod losses;
pub mod ops;
pub mod router;
