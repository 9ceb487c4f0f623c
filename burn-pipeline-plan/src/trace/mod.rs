//! Traces: what ran when, predicted or measured, in one event type and three drawings.
//!
//! The simulator predicts [`Event`]s and the runtime records them, so both can be laid side by side:
//!
//! - [`chrome()`]: JSON for Perfetto or `chrome://tracing`, several tracks below each other;
//! - [`svg()`]: a timeline for a paper;
//! - [`ascii()`]: the same for a terminal.
//!
//! [`exposed_times`] tells of each transfer for how long its rank stood still for it; the JSON holds it too.

mod ascii;
mod axis;
mod chrome;
mod event;
mod exposed;
mod kind;
mod lanes;
mod svg;

pub use ascii::ascii;
pub use chrome::{chrome, chrome_steps};
pub use event::{Event, Track};
pub use exposed::{ExposedTime, exposed_times};
pub use svg::{SvgOptions, svg};
