//! Records one forward and its seeded backward of a stage: nothing is computed, and the user's code runs once.
//!
//! Reading order: [`parameters`] (a module's parameters as placeholders), [`signature`] (what a call's programs
//! depend on), [`output_spec`] (what a forward returns), [`record`].

mod output_spec;
mod parameters;
mod record;
mod signature;

pub(super) use output_spec::OutputSpec;
pub(super) use parameters::Parameters;
pub(super) use record::{Recorded, Refusal, record};
pub(super) use signature::Signature;
