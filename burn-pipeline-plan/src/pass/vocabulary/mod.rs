//! Vocabulary parallelism over all ranks: every rank gets a piece of the embedding and of the head.
//!
//! ```text
//! before   rank 0: 0F0 0F1 0B0 0B1                       (the embedding before stage 0)
//!          rank 1: 1F0 1B0 1F1 1B1                       (the head after stage 1)
//! after    rank 0: 0IF0 0REDUCE_IF0 0F0 1BCAST_S0 1S0 1REDUCE_S0 0F1 1T0 0B0 0BCAST_IB0 0IB0 ...
//!          rank 1: 0IF0 0REDUCE_IF0 1F0 1BCAST_S0 1S0 1REDUCE_S0 1F1 1B0 1T0 0BCAST_IB0 0IB0 ...
//! ```
//!
//! Guarantees: the plan computes the same values, forwards and backwards of every rank keep their orders, and the
//! collectives of all ranks have one order. Idempotent. Peak activations rise by at most one microbatch per rank.
//!
//! 1. There is now a barrier of all ranks between a microbatch's last forward and its first backward. To give ranks
//!    work meanwhile, forwards move ahead of backwards by up to one microbatch ([`shift`]).
//! 2. The rows are run in simulated time, and pieces are placed where ranks would idle or where they are due
//!    ([`list`]).
//! 3. Collectives are inserted where ranks can start them, in the order in which they end ([`merge`]).
//! 4. The fastest of several shifts is kept. Then two variants are tried: ranks wait for their next cell, and `T`
//!    and `IB` come later. A variant with more memory must be faster by [`GAIN`].
//!
//! Follows Algorithm 2 and the building blocks of Yeung et al., Balancing Pipeline Parallelism with Vocabulary
//! Parallelism, 2024 (arXiv:2411.05288): one barrier per microbatch, one extra activation for 1F1B.

mod list;
mod merge;
mod shift;

use super::error::PassError;
use crate::cost::{Profile, ProfileError};
use crate::plan::{CheckOptions, Plan};
use list::{List, Listing, Rules};

/// The share by which a variant with more memory must be faster.
const GAIN: f64 = 1e-3;

impl Plan {
    /// Makes the embedding and the head vocabulary parallel over all ranks, with the costs of the profile's
    /// [`vocabulary`](crate::cost::Profile::vocabulary). The plan's stages are the layers between the two. Run it
    /// before [`Plan::with_transfers`].
    ///
    /// Idempotent: a vocabulary-parallel plan is returned unchanged. `burn-pipeline` runs such plans, and builds
    /// them itself if its builder is given the layers (`Builder::vocabulary`).
    ///
    /// # Errors
    /// Returns [`PassError::Vocabulary`] if the plan has transfers or two routes, or if not all stages train,
    /// [`PassError::Check`] if it cannot run, and [`PassError::Profile`] if the profile does not fit it or has no
    /// vocabulary costs.
    ///
    /// ```
    /// use burn_pipeline_plan::cost::{Profile, UniformCosts, VocabularyCost};
    /// use burn_pipeline_plan::plan::{CheckOptions, Plan};
    ///
    /// let plan = Plan::from_csv("mine", "0F0,0B0\n1F0,1B0\n")?;
    /// let pieces =
    ///     VocabularyCost { head_forward: 0.5, head_input: 0.5, head_weight: 0.5, ..VocabularyCost::default() };
    /// let profile = Profile::uniform(plan.placement(), UniformCosts::new(1.0, 1.0, 1.0))?.with_vocabulary(pieces)?;
    /// let parallel = plan.with_vocabulary(&profile)?;
    /// assert!(parallel.to_csv().contains("1BCAST_S0,1S0,1REDUCE_S0"));
    /// assert!(parallel.with_transfers()?.check(&CheckOptions::default()).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_vocabulary(&self, profile: &Profile) -> Result<Plan, PassError> {
        if self.has_vocabulary() {
            return Ok(self.clone());
        }
        let costs = profile.costs(self.placement())?;
        let pieces = *profile.vocabulary().ok_or(ProfileError::NoVocabulary)?;
        let refuse = |reason| Err(PassError::Vocabulary { reason });
        if self.is_lowered() {
            return refuse("it already has transfers; run `with_vocabulary` first");
        }
        if self.first_trained() > 0 {
            return refuse(
                "its first stages have no backward, so its embedding would get no gradient; use a plan in which all \
                 stages train",
            );
        }
        if self.placement().routes() > 1 {
            return refuse(
                "its schedule is bidirectional: each rank holds stages of both routes, first and last ones; choose a \
                 schedule with one route, such as 1F1B, ZBH1 or DualPipeV",
            );
        }
        self.clone().check(&CheckOptions::default())?;
        let list =
            |forwards: usize, rules: Rules| List::new(self, &costs, pieces, rules).run(&shift::shifted(self, forwards));
        let at_once = Rules { delay: 1, patient: false };
        let mut best: Option<(usize, Rules, Listing)> = None;
        let offer = |forwards: usize, rules: Rules, best: &mut Option<(usize, Rules, Listing)>| {
            let Some(listing) = list(forwards, rules) else { return };
            if best.as_ref().is_none_or(|(_, _, old)| listing.makespan < old.makespan * (1.0 - GAIN)) {
                *best = Some((forwards, rules, listing));
            }
        };
        shift::shifts(self).into_iter().for_each(|forwards| offer(forwards, at_once, &mut best));
        for (delay, patient) in [(1, true), (2, false)] {
            let Some((forwards, rules, _)) = best else { break };
            offer(forwards, Rules { delay: delay.max(rules.delay), patient: patient || rules.patient }, &mut best);
        }
        let best = best.map(|(_, _, listing)| merge::merged(self, listing));
        best.ok_or(PassError::Vocabulary { reason: "no order of the pieces was found; please report the plan" })
    }
}
