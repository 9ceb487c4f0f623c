//! What a stage holds between microbatches and steps: parameters by name, gradient sums, the optimizer's state.

mod by_element;
mod gradients;
mod named;
mod names;
mod shared_error;
mod weights;

pub(super) use by_element::steps_by_element;
pub(super) use gradients::collected;
pub use gradients::{Accumulation, GradientStore, WeightGradients};
pub use named::NamedParameter;
pub(super) use named::{named_parameters, parameter_ids, retie};
pub use names::Names;
pub use shared_error::SharedError;
pub use weights::{
    NamedWeight, ParameterState, StageState, StateValue, named_weights, optimizer_state, with_optimizer_state,
    with_weights,
};
