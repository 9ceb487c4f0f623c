//! One profile for all ranks: the median of each rank's measurements.
//!
//! Guarantees: the result does not depend on the order of the profiles, so ranks that have gathered each other's
//! profiles compute the same one and make the same decisions. Each number was measured: of an even count, it is the
//! lower of the two middle ones, as in `torch.median`.
//!
//! 1. Each number of each stage is the median over the profiles that have it.
//! 2. Each link is the median over all profiles. A pair of ranks is listed if any profile lists it.
//! 3. If the medians of a stage no longer fit together (`I` would free more than is held), the freed bytes are
//!    reduced.
//!
//! Follows `align_runtime_estimations_across_all_distributed_ranks` of PyTorch's `torch/_inductor/comms.py`.

use super::amount::Number;
use super::error::ProfileError;
use super::link::{LinkCost, LinkCosts, LinkOverride};
use super::profile::Profile;
use super::stage_cost::StageCost;
use super::vocabulary::VocabularyCost;
use std::collections::BTreeSet;

impl Profile {
    /// The median of several ranks' profiles of the same stages, number by number.
    ///
    /// # Errors
    /// Returns [`ProfileError::NoProfile`] for an empty list; [`ProfileError::DifferentStages`] or
    /// [`ProfileError::DifferentSkips`] if the profiles differ in their number of stages or their skip edges;
    /// [`ProfileError::DifferentVocabulary`] if some have vocabulary-parallel costs and others do not.
    ///
    /// ```
    /// use burn_pipeline_plan::cost::{LinkCosts, Profile, StageCost};
    /// let rank = |forward| Profile::new(vec![StageCost { forward, ..StageCost::default() }], LinkCosts::default());
    /// let shared = Profile::median(&[rank(1.0)?, rank(9.0)?, rank(1.2)?])?;
    /// assert_eq!(shared.stages()[0].forward, 1.2);
    /// # Ok::<(), burn_pipeline_plan::cost::ProfileError>(())
    /// ```
    pub fn median(profiles: &[Profile]) -> Result<Profile, ProfileError> {
        let first = profiles.first().ok_or(ProfileError::NoProfile)?.stages().len();
        if let Some(other) = profiles.iter().map(|profile| profile.stages().len()).find(|&stages| stages != first) {
            return Err(ProfileError::DifferentStages { first, other });
        }
        let skips = profiles[0].skips();
        if profiles.iter().any(|profile| profile.skips() != skips) {
            return Err(ProfileError::DifferentSkips);
        }
        let stage = |stage: usize| stage_cost(&profiles.iter().map(|p| p.stages()[stage]).collect::<Vec<_>>());
        let trained = profiles.iter().map(Profile::first_trained).min().unwrap_or(0);
        let merged = Profile::new((0..first).map(stage).collect(), links(profiles))?.with_skips(skips.to_vec())?;
        let merged = merged.train_from(trained)?;
        let pieces: Vec<VocabularyCost> = profiles.iter().filter_map(|profile| profile.vocabulary().copied()).collect();
        match pieces.len() {
            0 => Ok(merged),
            some if some == profiles.len() => merged.with_vocabulary(VocabularyCost::median(&pieces)),
            _ => Err(ProfileError::DifferentVocabulary),
        }
    }
}

fn stage_cost(costs: &[StageCost]) -> StageCost {
    let cost = StageCost::median(costs);
    let held = cost.activation_bytes + cost.recomputed_bytes;
    StageCost { freed_at_input_bytes: cost.freed_at_input_bytes.min(held), ..cost }
}

fn links(profiles: &[Profile]) -> LinkCosts {
    let over = |link: &dyn Fn(&Profile) -> LinkCost| LinkCost {
        latency: Number::median(profiles.iter().map(|p| link(p).latency)),
        bandwidth: Number::median(profiles.iter().map(|p| link(p).bandwidth)),
    };
    let pairs: BTreeSet<(usize, usize)> =
        profiles.iter().flat_map(|p| p.links().between.iter().map(|b| (b.from, b.to))).collect();
    let between = pairs
        .into_iter()
        .map(|(from, to)| LinkOverride::new(from, to, over(&|profile: &Profile| profile.links().link(from, to))));
    LinkCosts { default: over(&|profile: &Profile| profile.links().default), between: between.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{Strategy, any, prop, proptest};

    fn profile(forward: f64, backward: Option<f64>, between: Vec<LinkOverride>) -> Profile {
        let links = LinkCosts { default: LinkCost { latency: forward, bandwidth: backward.map(|b| b + 1.0) }, between };
        Profile::new(vec![StageCost { forward, backward, ..StageCost::default() }; 2], links).unwrap()
    }

    #[test]
    fn one_slow_rank_and_one_missing_number_change_nothing() {
        let merged = Profile::median(&[
            profile(1.0, Some(2.0), vec![]),
            profile(50.0, None, vec![LinkOverride { from: 0, to: 1, latency: 7.0, bandwidth: None }]),
            profile(1.5, Some(3.0), vec![]),
            profile(1.25, Some(2.5), vec![]),
        ]);
        let merged = merged.unwrap();
        assert_eq!((merged.stages()[1].forward, merged.stages()[1].backward), (1.25, Some(2.5)));
        assert_eq!(merged.links().default, LinkCost { latency: 1.25, bandwidth: Some(3.5) });
        assert_eq!(merged.links().link(0, 1), LinkCost { latency: 1.25, bandwidth: Some(3.5) });
        assert_eq!(merged.links().between.len(), 1);
    }

    #[test]
    fn no_profiles_and_profiles_of_different_cuts_are_refused() {
        assert_eq!(Profile::median(&[]), Err(ProfileError::NoProfile));
        let other = Profile::new(vec![StageCost::default()], LinkCosts::default()).unwrap();
        let error = Profile::median(&[profile(1.0, None, vec![]), other]).unwrap_err();
        assert_eq!(error, ProfileError::DifferentStages { first: 2, other: 1 });
        let stages = || Profile::new(vec![StageCost::default(); 3], LinkCosts::default()).unwrap();
        let across = stages().with_skips(vec![(0, 2).into()]).unwrap();
        assert_eq!(Profile::median(&[across.clone(), across.clone()]), Ok(across.clone()));
        assert_eq!(Profile::median(&[stages(), across]), Err(ProfileError::DifferentSkips));
        let pieces = |head_forward| VocabularyCost { head_forward, ..VocabularyCost::default() };
        let parallel = |seconds| stages().with_vocabulary(pieces(seconds)).unwrap();
        let merged = Profile::median(&[parallel(1.0), parallel(9.0), parallel(2.0)]).unwrap();
        assert_eq!(merged.vocabulary(), Some(&pieces(2.0)));
        assert_eq!(Profile::median(&[stages(), parallel(1.0)]), Err(ProfileError::DifferentVocabulary));
    }

    fn cost() -> impl Strategy<Value = StageCost> {
        let part = || prop::option::of(0.0..9.0f64);
        (0.0..9.0f64, part(), part(), 0.0..9.0f64, 0.0..1.0f64, 0.0..9.0f64).prop_map(
            |(forward, input, weight, activation_bytes, share, recomputed_bytes)| StageCost {
                forward,
                input,
                weight,
                activation_bytes,
                recomputed_bytes,
                freed_at_input_bytes: (activation_bytes + recomputed_bytes) * share,
                ..StageCost::default()
            },
        )
    }

    proptest! {
        #[test]
        fn every_rank_comes_to_the_same_profile_within_what_was_measured(
            costs in prop::collection::vec(prop::collection::vec(cost(), 3), 1..6),
            turn in any::<usize>(),
        ) {
            let mut ranks: Vec<Profile> =
                costs.into_iter().map(|stages| Profile::new(stages, LinkCosts::default()).unwrap()).collect();
            let merged = Profile::median(&ranks).unwrap();
            let turn = turn % ranks.len();
            ranks.rotate_left(turn);
            assert_eq!(Profile::median(&ranks).unwrap(), merged);
            for (stage, cost) in merged.stages().iter().enumerate() {
                let forwards: Vec<f64> = ranks.iter().map(|rank| rank.stages()[stage].forward).collect();
                let below = forwards.iter().filter(|&&forward| forward < cost.forward).count();
                let above = forwards.iter().filter(|&&forward| forward > cost.forward).count();
                assert!(forwards.contains(&cost.forward) && below.max(above) * 2 <= forwards.len());
            }
            // The median of equal profiles is the same profile.
            assert_eq!(Profile::median(&[merged.clone(), merged.clone()]).unwrap(), merged);
        }
    }
}
