//! Traces: what ran when, predicted or measured, in one event type and three drawings.
//!
//! The simulator predicts [`Event`]s and the runtime records them, so both can be laid side by side.

mod event;

pub use event::{Event, Track};
