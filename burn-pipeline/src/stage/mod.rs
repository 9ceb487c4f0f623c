//! Stages: the parts of a user's model, and what crosses the boundaries between them.
//!
//! A user cuts an existing Burn model by its layers. Each part is a module that implements [`Stage`], which names
//! the types of its input and output. It is built on its own rank and device, so the whole model never exists in one
//! place. The last part gets a loss.
//!
//! Reading order: `module` ([`Stage`]), `stage_box` (what a factory returns), `batch` (a batch, its microbatches, the
//! loss contract), `random` (seeds), `precision` (element types), `state` (parameters, masters, gradient sums,
//! optimizer state), `options` (what a user sets), `engine` (ways to run a stage), `erased` (what the executor drives),
//! `single` (a stage by hand).
//!
//! # A plain stack of layers
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::tensor::{Device, Tensor, activation::relu};
//! use burn_pipeline::stage::{Stage, StageBox};
//!
//! /// Some consecutive layers of the stack.
//! #[derive(Module, Debug)]
//! struct Part {
//!     layers: Vec<Linear>,
//! }
//!
//! impl Stage for Part {
//!     type Input = Tensor<2>;
//!     type Extra = ();
//!     type Output = Tensor<2>;
//!
//!     fn forward(&self, x: Tensor<2>, _: ()) -> Tensor<2> {
//!         self.layers.iter().fold(x, |x, layer| relu(layer.forward(x)))
//!     }
//! }
//!
//! /// Called on the rank of stage `index`: layers 2 * index and 2 * index + 1 of the whole stack.
//! fn build(index: usize, stages: usize, device: &Device) -> StageBox {
//!     let layers = (0..2).map(|_| LinearConfig::new(16, 16).init(device)).collect();
//!     let part = Part { layers };
//!     if index + 1 < stages {
//!         StageBox::new(part)
//!     } else {
//!         StageBox::with_loss(part, |y: Tensor<2>, target: Tensor<2>| (y - target).square().mean())
//!     }
//! }
//! ```
//!
//! # A transformer
//!
//! The first stage takes token ids and the others hidden states. Either write three modules (embedding and
//! blocks; blocks; blocks and head) and return the right one for each stage, or one module with optional parts
//! and an enum at its boundary; `GptPart` in `examples/src/gpt` is of the latter kind, so that any number of stages,
//! one included, is built by the same few lines:
//!
//! ```
//! use burn::tensor::{Int, Tensor};
//! use burn_pipeline::boundary;
//!
//! enum Signal {
//!     Tokens(Tensor<2, Int>),
//!     Hidden(Tensor<3>),
//! }
//! boundary!(enum Signal { Tokens(t), Hidden(t) });
//! ```

mod batch;
mod engine;
mod erased;
mod error;
mod module;
mod options;
mod precision;
mod random;
mod single;
mod stage_box;
mod state;

pub use batch::{Batch, LOSS_SEED, Loss, MicrobatchError, Microbatches, Reduction, Split, Weight};
pub use engine::{ActivationBytes, DeferredShare, EngineReport, SplitBackward};
pub use erased::ReplaceError;
pub use error::StageError;
pub use module::Stage;
pub(crate) use module::without_rule;
pub use precision::{LossScale, Precision};
pub use random::init_seeded;
pub use single::SingleStage;
pub use stage_box::StageBox;
pub use state::{Accumulation, NamedWeight, Names, SharedError, named_weights, with_weights};

pub(crate) use batch::{LossPart, loss_seed};
pub(crate) use engine::{
    BackwardCall, BatchChecks, Direction, ForwardCall, ForwardOutput, Gradients, LossFunction, Members, PayloadCheck,
    StageFunction, Started, check, depends_on_microbatch, microbatch,
};
pub(crate) use erased::{Change, ErasedStage, LayerChange, Offered};
pub(crate) use options::PROGRAMS;
pub(crate) use random::{ForwardSeed, is_seeding, mixed, random};
pub(crate) use state::{
    GradientStore, MadeUpSteps, NamedParameter, ParameterState, StageState, Standing, StateValue, made_up_names,
    with_optimizer_state,
};
