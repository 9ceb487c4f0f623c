//! Traces: what ran when, predicted or measured, as one type of event and three drawings.
//!
//! The simulator predicts [`Event`]s and the runtime records them, so that the two can be compared:
//!
//! - [`chrome()`]: JSON for Perfetto or `chrome://tracing`, several tracks one below the other; [`read_chrome`] reads it back;
//! - [`Track::svg`]: a timeline for a paper;
//! - [`Track::ascii`]: the same for a terminal.
//!
//! [`Track::exposed_times`] says how long each transfer kept its rank waiting; the JSON holds these numbers too.
//!
//! Files in reading order: `event`, `kind` and `lanes` and `axis` (what drawings share), the drawings, `read`, `exposed`.

mod ascii;
mod axis;
mod chrome;
mod event;
mod exposed;
mod kind;
mod lanes;
mod read;
mod svg;

pub use chrome::chrome;
pub use event::{Event, Track};
pub use exposed::ExposedTime;
pub use read::{TraceError, read_chrome};
pub use svg::SvgOptions;

pub(crate) use exposed::{Product, awaited, product_of};
pub(crate) use kind::{Kind, chunks};
