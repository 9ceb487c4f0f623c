//! Runs passes one after the other, each on the plan that the one before it left.

use super::judge::Judge;
use super::options::{OverlapError, OverlapOptions, OverlapPass};
use super::report::PassReport;
use crate::cost::Profile;
use crate::pass::waits::{Placing, WaitOptions, insert_waits};
use crate::plan::Plan;

/// A plan after some passes, and what each of them did.
#[derive(Clone, PartialEq, Debug)]
pub struct Overlapped {
    /// The plan.
    pub plan: Plan,
    /// One report a pass.
    pub reports: Vec<PassReport>,
}

/// Runs passes one after the other over a lowered plan, as it stands: only starts with waits of their own move. Idle
/// cells are dropped.
///
/// The budget of memory is for all of them together, over the plan given.
///
/// # Errors
/// [`OverlapError::NotLowered`]; [`OverlapError::Check`], [`OverlapError::Simulate`] or [`OverlapError::Profile`] where
/// the plan given does not run or the profile is about another one.
///
/// ```
/// use burn_pipeline_plan::cost::{Profile, UniformCosts};
/// use burn_pipeline_plan::pass::overlap::{OverlapOptions, OverlapPass, run_passes};
/// use burn_pipeline_plan::plan::Plan;
///
/// let text = "0F0,0SEND_F0,0WAIT_SEND_F0,0F1,0SEND_F1,0WAIT_SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n";
/// let plan = Plan::from_csv("mine", text)?;
/// let profile = Profile::uniform(plan.placement(), UniformCosts::new(1.0, 1.0, 1.0).with_transfer(1.0))?;
/// let sunk = run_passes(&plan, &profile, &[OverlapPass::SinkWaits], &OverlapOptions::default())?;
/// assert_eq!(sunk.plan.row(0)[3].to_string(), "0SEND_F1");
/// let (before, after) = sunk.reports[0].exposed();
/// assert!(after < before);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run_passes(
    plan: &Plan,
    profile: &Profile,
    passes: &[OverlapPass],
    options: &OverlapOptions,
) -> Result<Overlapped, OverlapError> {
    let mut judge = Judge::new(plan, profile, options)?;
    let reports = passes.iter().map(|&pass| judge.run(pass)).collect::<Result<_, _>>()?;
    Ok(Overlapped { plan: judge.into_plan(), reports })
}

/// Gives every start a wait, then runs passes.
///
/// Waits go where they cost neither time nor memory beyond the budget: late ones ([`Placing::Late`]) first; else those
/// of sends at once, where the passes can take them further; else sends keep none.
///
/// # Errors
/// As [`run_passes`].
pub fn overlap(
    plan: &Plan,
    profile: &Profile,
    passes: &[OverlapPass],
    options: &OverlapOptions,
) -> Result<Overlapped, OverlapError> {
    let mut judge = Judge::new(plan, profile, options)?;
    // A transfer past a neighbour stays where it is: its cell ends when it does.
    let late = WaitOptions { skips: false, ..WaitOptions::all(Placing::Late) };
    let placings = [
        late,
        WaitOptions { sends: Placing::AtOnce, ..late },
        WaitOptions { skips: false, ..WaitOptions::all(Placing::AtOnce) },
        WaitOptions { sends: Placing::Implicit, ..late },
    ];
    for placing in placings {
        if judge.admit(insert_waits(plan, &placing)).is_ok() {
            break;
        }
    }
    let reports = passes.iter().map(|&pass| judge.run(pass)).collect::<Result<_, _>>()?;
    Ok(Overlapped { plan: judge.into_plan(), reports })
}
