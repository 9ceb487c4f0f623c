//! [`CheckedPlan`] and [`Plan::check`], the only way to make one.

use super::channels::refuse_disorder;
use super::deadlock::{refuse_lowered, refuse_unlowered};
use super::error::CheckError;
use super::options::{CheckOptions, Transport};
use super::scan::{refuse_short, scan_rows};
use super::vocabulary::refuse_collective_disorder;
use crate::plan::edges::Edges;
use crate::plan::rows::Plan;

/// A plan that has passed [`Plan::check`]. There is no other way to make one.
#[derive(Clone, PartialEq, Debug)]
pub struct CheckedPlan {
    plan: Plan,
    transport: Transport,
}

impl CheckedPlan {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The plan, no longer checked, so that it may be rewritten.
    pub fn into_plan(self) -> Plan {
        self.plan
    }

    /// The transport that it was checked for. It also runs under any laxer one.
    pub fn transport(&self) -> Transport {
        self.transport
    }
}

impl Plan {
    /// Proves that the plan can be run, or refuses it. What is proved, for a declared [`Transport`]:
    ///
    /// - every stage does every microbatch of its route exactly once, on the rank that holds the stage: `F`, then `B`, or
    ///   `I` and later `W`; a plan for evaluation has `F` alone everywhere;
    /// - in a lowered plan, each value that crosses ranks is sent once after it is computed and received once before it is
    ///   used, nothing else is sent, and both ends of a channel (an ordered pair of ranks) have the same order; values
    ///   along skip edges ([`SkipEdge`](crate::plan::SkipEdge)) follow the same rules;
    /// - each wait comes once, after the start that it is for and before every use of what it waits for;
    /// - if any stage is unsharded, each stage is unsharded whenever it computes, and computes whenever it was unsharded; if any
    ///   stage's gradients are reduced, each stage's are, once, after its last weight gradient;
    /// - if the vocabulary is spread, every rank runs its pieces and starts its collectives once a microbatch, each after what it
    ///   needs, and all ranks start the collectives in one order;
    /// - it cannot deadlock: under that transport, or any laxer one, every rank reaches the end of its row;
    /// - activations, received payloads and sent payloads stay under the caps given.
    ///
    /// What the ranks that hold a stage together exchange inside of its computations is known later, and has a check of its own:
    /// [`CheckedPlan::check_collectives`].
    ///
    /// An unlowered plan is checked as if every value were available to its user as soon as it is computed.
    ///
    /// # Errors
    /// A [`CheckError`] that names rank, step, action and fault. Rows are scanned in rank order, so of several faults the
    /// one on the lowest rank is reported. Faults between two ranks (order on a channel, deadlock) are reported only if
    /// there is no other.
    ///
    /// ```
    /// use burn_pipeline_plan::plan::{CheckOptions, Plan};
    /// let plan = Plan::from_csv("mine", "0F0,0B0\n1F0,1B0\n")?;
    /// assert!(plan.check(&CheckOptions::default()).is_ok());
    /// let error = Plan::from_csv("mine", "0F0,0B0\n1B0,1F0\n")?.check(&CheckOptions::default()).unwrap_err();
    /// assert!(error.to_string().starts_with("rank 1, step 0: 1B0 needs 1F0 earlier in the row"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check(self, options: &CheckOptions) -> Result<CheckedPlan, Box<CheckError>> {
        let edges = Edges::new(&self);
        refuse_short(&self, &edges)?;
        let transfers = scan_rows(&self, &edges, options)?;
        refuse_collective_disorder(&self)?;
        if self.is_lowered() {
            let order = refuse_disorder(&self, &transfers)?;
            refuse_lowered(&self, &transfers, &order, options.transport)?;
        } else {
            refuse_unlowered(&self, &edges)?;
        }
        Ok(CheckedPlan { plan: self, transport: options.transport })
    }
}
