//! Measuring a model and its links, and choosing a schedule by what was measured.
//!
//! Read `layers` with `walk` and `layer`, `memory`, `links` and `profile` (what is measured), `agree` (what all ranks agree on),
//! `costs` (what plans are priced by), `request` (what the planner is asked), `contender` (what could run, and how it changes
//! places with what runs), `trial` (how two plans are compared), `trials` (one after the other), `compare` (which ones), then
//! `auto` with `options` and `decision`.

mod agree;
mod auto;
mod compare;
mod contender;
mod costs;
mod decision;
mod layer;
mod layers;
mod links;
mod measure_error;
mod memory;
mod options;
mod profile;
mod request;
mod trial;
mod trials;
mod walk;

pub use auto::AutoPipeline;
pub use decision::{AutoError, Choice, Decision};
pub use layers::MeasuredLayers;
pub use measure_error::MeasureError;
pub use memory::MemoryMeter;
pub use options::AutoOptions;
pub use trial::Trial;
