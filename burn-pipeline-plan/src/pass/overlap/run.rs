//! Runs passes one after the other, each on the result of the previous one.

use super::judge::{Judge, ROUNDING};
use super::options::{OverlapOptions, OverlapPass};
use super::report::PassReport;
use crate::cost::Profile;
use crate::pass::error::PassError;
use crate::pass::waits::{Placing, WaitOptions};
use crate::plan::Plan;

/// A plan after some passes, with one report per pass.
#[derive(Clone, PartialEq, Debug)]
pub struct Overlapped {
    /// The plan after the last pass.
    pub plan: Plan,
    /// What each pass did, in order.
    pub reports: Vec<PassReport>,
}

impl Plan {
    /// Runs passes one after the other on a lowered plan. Only starts with their own waits move. Idle cells are
    /// dropped.
    ///
    /// The memory budget is relative to the original plan, for all passes together.
    ///
    /// # Errors
    /// Returns [`PassError::NotLowered`] if the plan has no transfers but needs them,
    /// [`PassError::OverlapVocabulary`] if it is vocabulary parallel, and [`PassError::Check`],
    /// [`PassError::Simulate`] or [`PassError::Profile`] if the original plan cannot run or the profile does not
    /// fit it.
    ///
    /// ```
    /// use burn_pipeline_plan::cost::{Profile, UniformCosts};
    /// use burn_pipeline_plan::pass::overlap::{OverlapOptions, OverlapPass};
    /// use burn_pipeline_plan::plan::Plan;
    ///
    /// let text = "0F0,0SEND_F0,0WAIT_SEND_F0,0F1,0SEND_F1,0WAIT_SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n";
    /// let plan = Plan::from_csv("mine", text)?;
    /// let profile = Profile::uniform(plan.placement(), UniformCosts::new(1.0, 1.0, 1.0).with_transfer(1.0))?;
    /// let sunk = plan.run_passes(&profile, &[OverlapPass::SinkWaits], &OverlapOptions::default())?;
    /// assert_eq!(sunk.plan.row(0)[3].to_string(), "0SEND_F1");
    /// let (before, after) = sunk.reports[0].exposed();
    /// assert!(after < before);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run_passes(
        &self,
        profile: &Profile,
        passes: &[OverlapPass],
        options: &OverlapOptions,
    ) -> Result<Overlapped, PassError> {
        self.run_passes_from(&[], profile, passes, options)
    }

    /// Gives every start between neighbours a wait, then runs passes.
    ///
    /// Four placings of the waits are tried in order, and the first that costs neither time nor memory beyond the
    /// budget is kept: all late ([`Placing::Late`]); sends at once, so that the passes can move them; all at once;
    /// sends without waits.
    ///
    /// # Errors
    /// Returns the errors of [`Plan::run_passes`].
    pub fn overlap(
        &self,
        profile: &Profile,
        passes: &[OverlapPass],
        options: &OverlapOptions,
    ) -> Result<Overlapped, PassError> {
        // Transfers along skip edges get no waits: the passes do not move them.
        let late = WaitOptions { skips: false, ..WaitOptions::all(Placing::Late) };
        let placings = [
            late,
            WaitOptions { sends: Placing::AtOnce, ..late },
            WaitOptions { skips: false, ..WaitOptions::all(Placing::AtOnce) },
            WaitOptions { sends: Placing::Implicit, ..late },
        ];
        self.run_passes_from(&placings, profile, passes, options)
    }

    /// Runs passes on the plan with the first of these placings of waits that costs nothing, if any.
    fn run_passes_from(
        &self,
        placings: &[WaitOptions],
        profile: &Profile,
        passes: &[OverlapPass],
        options: &OverlapOptions,
    ) -> Result<Overlapped, PassError> {
        if self.has_vocabulary() {
            return Err(PassError::OverlapVocabulary);
        }
        let mut judge = Judge::new(self, profile, options)?;
        for placing in placings {
            if judge.admit(self.with_waits(placing), ROUNDING).is_ok() {
                break;
            }
        }
        let reports = passes.iter().map(|&pass| judge.run(pass)).collect::<Result<_, _>>()?;
        Ok(Overlapped { plan: judge.plan, reports })
    }
}
