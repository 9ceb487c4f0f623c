//! The flags for costs: uniform numbers, or a profile from a file.

use crate::failure::Failure;
use crate::values::{amount, parse};
use burn_pipeline_plan::cost::{Factors, Profile, UniformCosts, VocabularyCost};
use burn_pipeline_plan::page::Page;
use burn_pipeline_plan::plan::{Placement, Plan};
use std::path::PathBuf;

/// Selects the factor of a kind of operation.
type Kind = fn(&mut Factors) -> &mut f64;

/// Parses a factor such as `transfer=2`.
fn factor(text: &str) -> Result<(Kind, f64), String> {
    let (kind, value) = text.split_once('=').ok_or("write KIND=FACTOR")?;
    let kind: Kind = match kind {
        "forward" => |factors| &mut factors.forward,
        "input" => |factors| &mut factors.input,
        "weight" => |factors| &mut factors.weight,
        "backward" => |factors| &mut factors.backward,
        "unshard" => |factors| &mut factors.unshard,
        "reduce_grad" => |factors| &mut factors.reduce_grad,
        "transfer" => |factors| &mut factors.transfer,
        _ => return Err("the kinds are forward, input, weight, backward, unshard, reduce_grad and transfer".into()),
    };
    Ok((kind, amount(value)?))
}

/// The flags for costs.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct CostArguments {
    /// Seconds of a rank's forward for one microbatch. With V stages per rank, each takes 1/V of it.
    #[arg(long, value_name = "F", allow_negative_numbers = true, default_value_t = 1.0, value_parser = amount)]
    pub(crate) forward: f64,
    /// Seconds of a rank's backward for the input, divided in the same way.
    #[arg(long, value_name = "I", allow_negative_numbers = true, default_value_t = 1.0, value_parser = amount)]
    pub(crate) input: f64,
    /// Seconds of a rank's backward for the weights, divided in the same way.
    #[arg(long, value_name = "W", allow_negative_numbers = true, default_value_t = 1.0, value_parser = amount)]
    pub(crate) weight: f64,
    /// Seconds of a forward fused with a backward [default: the sum of both].
    #[arg(long, value_name = "FB", allow_negative_numbers = true, value_parser = amount)]
    pub(crate) fused: Option<f64>,
    /// Seconds that a message takes between two ranks.
    #[arg(long, value_name = "C", allow_negative_numbers = true, default_value_t = 0.0, value_parser = amount)]
    pub(crate) transfer: f64,
    /// A profile with the costs of every stage and link, instead of the numbers above. If its first stages do not
    /// train, plans leave out their backwards. Without a profile, pieces of a
    /// parallel vocabulary take no time.
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["forward", "input", "weight", "fused", "transfer"])]
    pub(crate) profile: Option<PathBuf>,
    /// Multiply the seconds of a kind of operation, in all stages or links: forward, input, weight, backward, unshard,
    /// reduce_grad or transfer.
    #[arg(long, value_name = "KIND=FACTOR,..", value_delimiter = ',', value_parser = factor)]
    pub(crate) scale: Vec<(Kind, f64)>,
}

impl CostArguments {
    /// The profile for a placement, from the flags or the file, scaled.
    pub(crate) fn profile(&self, placement: &Placement) -> Result<Profile, Failure> {
        let profile = match &self.profile {
            Some(path) => parse(path, Profile::from_json)?,
            None => {
                let uniform = UniformCosts::new(self.forward, self.input, self.weight).with_transfer(self.transfer);
                let profile = Profile::uniform(placement, UniformCosts { overlap: self.fused, ..uniform })?;
                profile.with_vocabulary(VocabularyCost::default())?
            }
        };
        let mut factors = Factors::default();
        self.scale.iter().for_each(|(kind, factor)| *kind(&mut factors) = *factor);
        Ok(profile.scaled(&factors)?)
    }

    /// Sets the page's unit of memory: without a profile, a rank's activations of one microbatch count 1.
    pub(crate) fn on(&self, page: Page) -> Page {
        if self.profile.is_some() { page } else { page.memory_in("rank-microbatches") }
    }

    /// Returns a plan with its profile. A plan without transfers gets the profile's skip edges, and trains from the
    /// profile's first stage that trains unless it leaves out backwards itself.
    pub(crate) fn over(&self, plan: Plan) -> Result<(Plan, Profile), Failure> {
        let profile = self.profile(plan.placement())?;
        if plan.is_lowered() {
            return Ok((plan, profile));
        }
        let plan = if plan.first_trained() == 0 { plan.train_from(profile.first_trained())? } else { plan };
        if profile.skips().is_empty() {
            return Ok((plan, profile));
        }
        Ok((plan.with_skips(profile.skips().to_vec())?, profile))
    }
}
