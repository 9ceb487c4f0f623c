//! The flags for costs: numbers for all stages, or a profile from a file.

use crate::failure::Failure;
use crate::files::read;
use crate::values::amount;
use burn_pipeline_plan::cost::{Profile, UniformCosts};
use burn_pipeline_plan::page::Page;
use burn_pipeline_plan::plan::{Placement, Plan};
use std::path::PathBuf;

/// The flags for costs.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct CostArguments {
    /// Seconds of a rank's forward for one microbatch; a stage takes 1/V of it with V stages a rank.
    #[arg(long, value_name = "F", allow_negative_numbers = true, default_value_t = 1.0, value_parser = amount)]
    pub(crate) forward: f64,
    /// Seconds of a rank's backward for the input, likewise.
    #[arg(long, value_name = "I", allow_negative_numbers = true, default_value_t = 1.0, value_parser = amount)]
    pub(crate) input: f64,
    /// Seconds of a rank's backward for the weights, likewise.
    #[arg(long, value_name = "W", allow_negative_numbers = true, default_value_t = 1.0, value_parser = amount)]
    pub(crate) weight: f64,
    /// Seconds of a forward fused with a backward [default: the sum of both].
    #[arg(long, value_name = "FB", allow_negative_numbers = true, value_parser = amount)]
    pub(crate) fused: Option<f64>,
    /// Seconds that a message takes between two ranks.
    #[arg(long, value_name = "C", allow_negative_numbers = true, default_value_t = 0.0, value_parser = amount)]
    pub(crate) transfer: f64,
    /// A profile with the costs of every stage and link, instead of the numbers above.
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["forward", "input", "weight", "fused", "transfer"])]
    pub(crate) profile: Option<PathBuf>,
}

impl CostArguments {
    /// The profile for a placement, from the flags or the file.
    pub(crate) fn profile(&self, placement: &Placement) -> Result<Profile, Failure> {
        if let Some(path) = &self.profile {
            return Profile::from_json(&read(path)?)
                .map_err(|error| Failure::Input(format!("{}: {error}", path.display())));
        }
        let uniform = UniformCosts::new(self.forward, self.input, self.weight).with_transfer(self.transfer);
        Ok(Profile::uniform(placement, UniformCosts { overlap: self.fused, ..uniform })?)
    }

    /// A page that counts memory as these costs do: without a profile, a rank's activations of one microbatch are 1.
    pub(crate) fn on(&self, page: Page) -> Page {
        if self.profile.is_some() { page } else { page.memory_in("rank-microbatches") }
    }

    /// A plan with its profile. A plan without transfers gets the skip edges of the profile.
    pub(crate) fn over(&self, plan: Plan) -> Result<(Plan, Profile), Failure> {
        let profile = self.profile(plan.placement())?;
        if plan.is_lowered() || profile.skips().is_empty() {
            return Ok((plan, profile));
        }
        let plan = plan.with_skips(profile.skips().to_vec()).map_err(|error| Failure::Input(error.to_string()))?;
        Ok((plan, profile))
    }
}
