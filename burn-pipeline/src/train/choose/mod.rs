//! Choosing a schedule by measured costs.

mod agree;
mod auto;
mod decision;
mod layers;
pub(crate) mod links;
mod profile;

pub use auto::{AutoOptions, AutoPipeline};
pub use decision::{AutoError, Decision, Trial};
pub use layers::{MeasureError, MeasuredLayers};
pub use profile::measured_profile;
