//! [`CheckedPlan`], and [`Plan::check`], which creates it.

use super::channels::refuse_disorder;
use super::deadlock::{refuse_lowered, refuse_unlowered};
use super::error::CheckError;
use super::options::{CheckOptions, Transport};
use super::scan::{refuse_short, scan_rows};
use super::vocabulary::refuse_collective_disorder;
use crate::plan::edges::Edges;
use crate::plan::rows::Plan;

/// A plan that has passed [`Plan::check`], the only way to create it.
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

    /// Returns the plan, unchecked, so that it can be rewritten.
    pub fn into_plan(self) -> Plan {
        self.plan
    }

    /// The transport that it was checked for. It also runs under any laxer one.
    pub fn transport(&self) -> Transport {
        self.transport
    }
}

impl Plan {
    /// Proves that the plan can run, or refuses it. For the [`Transport`] in `options`, this proves:
    ///
    /// - Every stage computes every microbatch of its route exactly once, on the rank that holds the stage: `F`,
    ///   then `B`, or `I` and later `W`. A plan for evaluation has only `F`.
    /// - In a lowered plan, each value that crosses ranks is sent once after it is computed and received once
    ///   before it is used, and nothing else is sent. Both ends of a channel (an ordered pair of ranks) use the
    ///   same order. Values along skip edges ([`SkipEdge`](crate::plan::SkipEdge)) follow the same rules.
    /// - Each wait occurs once, after its start and before every use of the result.
    /// - If any stage is unsharded, each stage is unsharded before it computes, and computes before it is resharded
    ///   or its row ends. If any stage's gradients are reduced, each stage's are, once, after its last weight gradient.
    /// - In a vocabulary-parallel plan, every rank runs its pieces and starts its collectives once per microbatch,
    ///   each after its inputs, and all ranks start the collectives in one order.
    /// - There is no deadlock: under this transport, or any laxer one, every rank reaches the end of its row.
    /// - Activations, received payloads and sent payloads stay within the given caps.
    ///
    /// The collectives inside a stage's computations are checked separately, once they are known:
    /// [`CheckedPlan::check_collectives`].
    ///
    /// An unlowered plan is checked as if every value were available to its user as soon as it is computed.
    ///
    /// # Errors
    /// Returns a [`CheckError`] with the rank, step, action and fault. Rows are scanned in rank order, so of
    /// several faults the one on the lowest rank is reported. Faults between two ranks (order on a channel,
    /// deadlock) are reported only if there is no other.
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
