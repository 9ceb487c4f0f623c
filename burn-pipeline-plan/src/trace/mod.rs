//! Traces: timelines of predicted or measured events, and three ways to draw them.
//!
//! The simulator predicts [`Event`]s and the runtime records them, so that the two can be compared:
//!
//! - [`chrome()`]: JSON for Perfetto or `chrome://tracing`, with several tracks one below the other. [`read_chrome`]
//!   reads it back.
//! - [`Track::svg`]: a timeline for a paper.
//! - [`Track::ascii`]: a timeline for a terminal.
//!
//! [`Track::exposed_times`] says how long each transfer kept its rank waiting; the JSON has these numbers too.
//!
//! Reading order: `event`; `kind` and `axis` (shared by the drawings); the drawings; `read`; `exposed`.

mod ascii;
mod axis;
mod chrome;
mod event;
mod exposed;
mod kind;
mod read;
mod svg;

pub use chrome::chrome;
pub use event::{Event, Track};
pub use exposed::ExposedTime;
pub use read::{TraceError, read_chrome};
pub use svg::SvgOptions;

pub(crate) use exposed::{Product, awaited, product_of, spans_by};
pub(crate) use kind::{Kind, chunks};
