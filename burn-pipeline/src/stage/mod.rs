//! Stages: a user's module part behind a boundary that tensors cross.
//!
//! A user splits an existing Burn model by its layers: each part is a module that implements [`Stage`], says
//! what it takes and what it hands on, and is built on its own rank and device, so the whole model never
//! exists in one place. The last part gets a loss.
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
//! struct Slice {
//!     layers: Vec<Linear>,
//! }
//!
//! impl Stage for Slice {
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
//!     let slice = Slice { layers };
//!     if index + 1 < stages {
//!         StageBox::new(slice)
//!     } else {
//!         StageBox::with_loss(slice, |y: Tensor<2>, target: Tensor<2>| (y - target).square().mean())
//!     }
//! }
//! ```
//!
//! # A transformer
//!
//! The first stage takes token ids and the others hidden states. Either write three modules (embedding and
//! blocks; blocks; blocks and head) and return the right one for each stage, or one module with optional parts
//! and an enum at its boundary; `examples/train_gpt` does the latter, so that any number of stages, one
//! included, is built by the same few lines:
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

mod any_tensor;
mod boundary;
mod by_element;
mod eager;
mod engine;
mod erased;
mod error;
mod function;
mod gradients;
mod init;
mod join;
mod loss;
mod metadata;
mod microbatch;
mod named;
mod names;
mod payload_spec;
mod ready;
mod recompute;
mod seed;
mod shared_error;
mod skip;
mod stage_box;
mod state;
mod traced;
mod typed;

pub use any_tensor::{AnyTensor, TensorKind, TensorKindOf};
pub use boundary::{Boundary, BoundaryError, Payload, PayloadPart, PayloadReader};
pub use engine::{
    ActivationBytes, DeferredShare, Direction, Engine, EngineKind, EngineReport, ForwardCall, ForwardOutput, Gradients,
    SplitBackward, StageWork, WorkResult, WorkStarted,
};
pub use erased::ErasedStage;
pub use error::StageError;
pub use function::{BatchChecks, PayloadCheck, StageFunction, TrackedOutput};
pub use gradients::{Accumulation, GradientStore, WeightGradients};
pub use init::init_seeded;
pub(crate) use loss::loss_seed;
pub use loss::{LOSS_SEED, Loss, LossPart, Reduction, Weight};
pub use metadata::{MetadataMode, StageMetadata, StagePort, Validate};
pub use microbatch::{Batch, MicrobatchError, Microbatches, Split};
pub use named::NamedParameter;
pub use names::Names;
pub use payload_spec::{PayloadSpec, SpecMismatch, SpecPart, TensorSpec};
pub use seed::ForwardSeed;
pub(crate) use seed::mixed;
pub use shared_error::SharedError;
pub use skip::{Skip, Skips};
pub use stage_box::StageBox;
pub use state::{
    NamedWeight, ParameterState, StageState, StateValue, named_weights, optimizer_state, with_optimizer_state,
    with_weights,
};

use burn::module::Module;

/// A contiguous part of a model, as a Burn module.
pub trait Stage: Module + Sync + 'static {
    /// What arrives from the stage before, or from the batch on the first stage.
    type Input: Boundary;
    /// What the stage reads beside its input, cut per microbatch (masks, document ids); `()` for nothing.
    type Extra: Boundary;
    /// What goes to the next stage, or to the loss on the last one.
    type Output: Boundary;

    /// Names of the batch's extras that make up [`Stage::Extra`], in its order.
    fn extras(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// The part's forward pass.
    fn forward(&self, input: Self::Input, extra: Self::Extra) -> Self::Output;

    /// The part once its weights were stepped; by default as it is. Here is moved what follows a rule instead of a
    /// gradient, such as a bias that balances the load of experts.
    ///
    /// `observed` is what the loss function had observed ([`Loss::observing`]) of every microbatch since the step before,
    /// accumulated batches in their order: the same on every rank and replica, whatever the schedule. What is moved must
    /// be no trained parameter (`set_require_grad(false)`), and keep its id; then it is saved, loaded and fed to captured
    /// programs as any parameter is, and stays whole where parameters are sharded (trained ones are pieces here).
    ///
    /// # Panics
    /// A panic is caught; it ends the step with an error that names rank and stage, and closes the pipeline.
    fn after_step(self, _observed: &[Vec<f64>]) -> Self {
        self
    }

    /// Why this part cannot be captured, if it is known: its forward reads values, or does something beside tensors.
    ///
    /// What is found when a capture is tried needs no mention. But a capture is tried by running the forward, which
    /// then ends in a caught panic, and the process's panic hook may print that; a part that says it first is not tried.
    fn skip_capture(&self) -> Option<&'static str> {
        None
    }
}
