//! A stage with its module's type hidden: what the executor drives.
//!
//! Guarantees: the code that drives a stage sees payloads and gradients, never a module's type.
//!
//! One type, [`typed`], implements everything. Each trait has one concern, in a file with its implementation:
//! [`describe`] (what the stage is), [`interleave`] (work in pieces, and the engine), [`weights`] (parameters and
//! checkpoints), [`update`] (around the optimizer step), [`replace`] (replacing the module), [`erased_stage`]
//! (running and stepping; it builds on the others).

mod describe;
mod erased_stage;
mod interleave;
mod options;
mod replace;
mod typed;
mod update;
mod weights;

pub(crate) use erased_stage::ErasedStage;
pub(crate) use options::PROGRAMS;
pub use replace::ReplaceError;
pub(crate) use replace::{Change, LayerChange, Offered};
pub(super) use typed::Typed;
