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
//! The guide's chapter [`cut_a_model`](crate::_guide::cut_a_model) has examples: a list of layers, and a
//! language model whose first stage takes token ids and the others hidden states.

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

pub use crate::program::Matmuls;
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
pub use state::{Accumulation, NamedWeight, Names, SharedError, named_weights, untied, with_weights};

pub(crate) use batch::{LossPart, loss_seed};
pub(crate) use engine::{
    BackwardCall, BatchChecks, Direction, ForwardCall, ForwardOutput, Gradients, LossFunction, PayloadCheck,
    StageFunction, Started, check, depends_on_microbatch, microbatch,
};
pub(crate) use erased::{Change, ErasedStage, LayerChange, Offered};
pub(crate) use options::{Members, PROGRAMS};
pub(crate) use random::{ForwardSeed, is_seeding, mixed, random};
pub(crate) use state::{
    GradientStore, MadeUpSteps, NamedParameter, ParameterState, StageState, Standing, StateValue, made_up_names,
    with_optimizer_state,
};
