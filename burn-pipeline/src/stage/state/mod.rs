//! What a stage keeps from step to step: its parameters by name, the sums of their gradients, its optimizer's state.
//!
//! Reading order: `each` (goes through parameters and buffers), [`named`] (these with their paths), [`names`] (their
//! names in the whole model), [`leaves`] (which of them are trained; frees graphs that a failure has left), [`weights`]
//! (values, taken out and put back),
//! [`forward_state`] (what forwards can change), [`masters`] (values in f32, of which the module has rounded copies),
//! [`gradients`] (sums over microbatches), [`in_model`] (a step, by names in the model), [`optimizer`] (its state, by
//! parameter), [`by_element`] (whether the optimizer can step shards), [`made_up`] (whether it equals that of other
//! processes), [`shared_error`].

mod by_element;
mod each;
mod forward_state;
mod gradients;
mod in_model;
mod leaves;
mod made_up;
mod masters;
mod named;
mod names;
mod optimizer;
mod shared_error;
mod weights;

pub(super) use by_element::steps_by_element;
pub(super) use each::{each_float, with_each};
pub(super) use forward_state::forward_state;
pub use gradients::Accumulation;
pub(crate) use gradients::GradientStore;
pub(super) use gradients::{WeightGradients, collected};
pub(super) use in_model::step_in_model;
pub(crate) use leaves::Standing;
pub(super) use leaves::{as_leaves, free_abandoned, trained};
pub(crate) use made_up::{MadeUpSteps, made_up_names};
pub(super) use masters::Masters;
pub(crate) use named::NamedParameter;
pub use named::untied;
pub(super) use named::{named_parameters, parameter_ids, retie};
pub use names::Names;
pub(super) use optimizer::optimizer_state;
pub(crate) use optimizer::{ParameterState, StageState, StateValue, with_optimizer_state};
pub use shared_error::SharedError;
pub use weights::{NamedWeight, named_weights, with_weights};
pub(super) use weights::{float_weights, merged_weights, unshared, values};
