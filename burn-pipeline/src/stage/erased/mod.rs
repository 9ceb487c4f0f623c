//! A stage with its module's type hidden: what the executor drives.

mod erased_stage;
mod typed;

pub use erased_stage::ErasedStage;
pub(super) use typed::Typed;
