//! Turns panics of user code outside a stage's task (in a factory, an optimizer, a loss observer) into errors.

use crate::execute::{ExecuteError, panic_message};
use crate::link::LinkError;
use burn_pipeline_plan::cost::PartitionError;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `f`; a panic in it becomes an error that says what the rank was doing. A link error raised by a collective, and
/// the refusal of layers that cannot be cut, stay what they are.
pub(crate) fn caught<T>(
    rank: usize,
    doing: impl FnOnce() -> String,
    f: impl FnOnce() -> Result<T, ExecuteError>,
) -> Result<T, ExecuteError> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        if let Some(source) = panic.downcast_ref::<LinkError>() {
            return Err(ExecuteError::Link { rank, task: None, source: source.clone() });
        }
        if let Some(source) = panic.downcast_ref::<PartitionError>() {
            return Err(ExecuteError::Layers { rank, doing: doing(), source: source.clone() });
        }
        Err(ExecuteError::RankPanic { rank, doing: doing(), message: panic_message(panic.as_ref()) })
    })
}
