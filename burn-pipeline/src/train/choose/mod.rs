//! Measuring a model and its links, and choosing a schedule by what was measured.
//!
//! Read `layers` with `layer`, `links` and `profile` (what is measured), `agree` (what all ranks agree on), then `auto` with `options`,
//! `request`, `switch` and `decision`.

mod agree;
mod auto;
mod decision;
mod layer;
mod layers;
mod links;
mod options;
mod profile;
mod request;
mod switch;

pub use auto::AutoPipeline;
pub use decision::{AutoError, Decision};
pub use layers::{MeasureError, MeasuredLayers};
pub use options::AutoOptions;
