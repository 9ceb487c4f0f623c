//! Measures a model and its links, and chooses a schedule from the measurements.
//!
//! Read `layers` with `walk` and `layer`, `memory`, `links` and `profile` (measuring), `agree` (agreement of all
//! ranks), `costs` (pricing of plans), `contender` (an alternative to the running plan) with `standby` (its stages),
//! `trial` (comparing two plans), `trials` (a series of them), `compare` (which plans, asked of the planner), then
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
mod memory;
mod options;
mod profile;
mod standby;
mod trial;
mod trials;
mod walk;

pub use auto::AutoPipeline;
pub use decision::{AutoError, Choice, Decision};
pub use layers::MeasuredLayers;
pub use memory::MemoryMeter;
pub use options::AutoOptions;
pub use trial::Trial;
pub use walk::MeasureError;
