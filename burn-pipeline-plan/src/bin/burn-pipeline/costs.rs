//! What a plan costs: numbers on the command line, or a profile in a file.

use crate::failure::Failure;
use crate::source::read;
use burn_pipeline_plan::cost::{Profile, UniformCosts};
use burn_pipeline_plan::plan::{Placement, Plan};
use std::path::PathBuf;

/// The flags of costs.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct CostArguments {
    /// Seconds of a forward, per rank and microbatch (a chunk takes 1/V of it).
    #[arg(long, value_name = "F", allow_negative_numbers = true, default_value_t = 1.0, value_parser = seconds)]
    pub(crate) forward: f64,
    /// Seconds of a backward for the input.
    #[arg(long, value_name = "I", allow_negative_numbers = true, default_value_t = 1.0, value_parser = seconds)]
    pub(crate) input: f64,
    /// Seconds of a backward for the weights.
    #[arg(long, value_name = "W", allow_negative_numbers = true, default_value_t = 1.0, value_parser = seconds)]
    pub(crate) weight: f64,
    /// Seconds of a forward fused with a backward [default: one after the other].
    #[arg(long, value_name = "FB", allow_negative_numbers = true, value_parser = seconds)]
    pub(crate) fused: Option<f64>,
    /// Seconds of latency of an edge between two ranks.
    #[arg(long, value_name = "C", allow_negative_numbers = true, default_value_t = 0.0, value_parser = seconds)]
    pub(crate) transfer: f64,
    /// Costs of every stage and link, in JSON, instead of the numbers above.
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["forward", "input", "weight", "fused", "transfer"])]
    pub(crate) profile: Option<PathBuf>,
}

impl CostArguments {
    /// The profile of a placement; a profile's file is read each time.
    pub(crate) fn profile(&self, placement: &Placement) -> Result<Profile, Failure> {
        if let Some(path) = &self.profile {
            return Profile::from_json(&read(path)?)
                .map_err(|error| Failure::Input(format!("{}: {error}", path.display())));
        }
        let uniform = UniformCosts::new(self.forward, self.input, self.weight).with_transfer(self.transfer);
        Ok(Profile::uniform(placement, UniformCosts { overlap: self.fused, ..uniform })?)
    }
}

impl CostArguments {
    /// A plan with its costs; one that is not lowered gets the profile's edges past the next stage.
    pub(crate) fn over(&self, plan: Plan) -> Result<(Plan, Profile), Failure> {
        let profile = self.profile(plan.placement())?;
        if plan.is_lowered() || profile.skips().is_empty() {
            return Ok((plan, profile));
        }
        let plan = plan.with_skips(profile.skips().to_vec()).map_err(|error| Failure::Input(error.to_string()))?;
        Ok((plan, profile))
    }
}

/// Parses zero or a positive number.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("write zero or a positive number".into()),
    }
}
