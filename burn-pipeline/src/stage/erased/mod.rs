//! A stage with its module's type hidden: what the executor drives.
//!
//! Guarantees: the code that drives a stage sees payloads and gradients, never a module's type.
//!
//! One type, [`typed`], implements everything. Each trait is in a file with its implementation: [`weights`]
//! (parameters and checkpoints), [`replace`] (replacing the module), [`erased_stage`] (all else; it builds on the
//! others).

mod erased_stage;
mod replace;
mod typed;
mod weights;

pub(crate) use erased_stage::ErasedStage;
pub use replace::ReplaceError;
pub(crate) use replace::{Change, LayerChange, Offered};
pub(super) use typed::Typed;
