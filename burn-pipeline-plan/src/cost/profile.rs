//! The measured or assumed costs of a model cut into stages, and their JSON.
//!
//! ```json
//! { "stages": [ { "forward": 0.0185, "input": 0.0181, "weight": 0.0093, "activation_bytes": 3.1e9 } ],
//!   "skips": [],
//!   "links": { "default": { "latency": 0.0006, "bandwidth": 2.4e10 } } }
//! ```
//!
//! Guarantees: a [`Profile`] has at least one stage, and none of its numbers is NaN, infinite or (except
//! `freed_at_input_bytes`) negative. A profile read from JSON has passed [`Profile::new`]; an unknown field is
//! refused by name.

use super::amount::is_default;
use super::error::ProfileError;
use super::link::LinkCosts;
use super::stage_cost::StageCost;
use super::vocabulary::VocabularyCost;
use crate::plan::skips::checked;
use crate::plan::{SkipEdge, Task};
use serde::{Deserialize, Serialize};

/// The costs of every stage and link. The runtime measures and writes it; the simulator and the planner read it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(try_from = "StoredProfile")]
pub struct Profile {
    stages: Vec<StageCost>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    skips: Vec<SkipEdge>,
    links: LinkCosts,
    #[serde(skip_serializing_if = "Option::is_none")]
    vocabulary: Option<VocabularyCost>,
    #[serde(skip_serializing_if = "is_default")]
    first_trained: usize,
}

impl Profile {
    /// A profile of these stages (in model order, of one route) and links between ranks.
    ///
    /// # Errors
    /// Returns an error if there is no stage, a number is negative, infinite or NaN, or `I` frees more than is
    /// held.
    pub fn new(stages: Vec<StageCost>, links: LinkCosts) -> Result<Self, ProfileError> {
        if stages.is_empty() {
            return Err(ProfileError::NoStage);
        }
        for (stage, cost) in stages.iter().enumerate() {
            if let Some((field, value)) = cost.fault() {
                return Err(ProfileError::Stage { stage, field, value });
            }
            let freed = cost.freed_at_input_bytes;
            if !freed.is_finite() || freed > cost.activation_bytes + cost.recomputed_bytes {
                return Err(ProfileError::FreesTooMuch { stage });
            }
        }
        links.check()?;
        Ok(Self { stages, skips: Vec::new(), links, vocabulary: None, first_trained: 0 })
    }

    /// The same profile for a model with these skip edges. Each edge moves the `skip_bytes` of its earlier stage.
    ///
    /// # Errors
    /// Returns [`ProfileError::Skip`] if an edge does not go past the next stage, leads out of the model, or is
    /// listed twice.
    pub fn with_skips(self, skips: Vec<SkipEdge>) -> Result<Self, ProfileError> {
        let skips = checked(skips, self.stages.len(), Task::MAX_SKIP)?;
        Ok(Self { skips, ..self })
    }

    /// The same profile for a model that trains from this stage on: stages before it have no backward and hold nothing
    /// for one, and `W` is its whole backward. Unchanged for stage 0. Plans for it are made with
    /// [`Plan::train_from`](crate::plan::Plan::train_from).
    ///
    /// A stage's `I` includes what gradients need on their way through its own layers. If the stage has several layers
    /// that train, cut a model that knows it ([`Layers::train_from`](super::Layers::train_from)) for exact costs.
    ///
    /// # Errors
    /// Returns [`ProfileError::FirstTrained`] if there is no such stage, or if an earlier call with a later
    /// stage has removed its backward.
    pub fn train_from(self, first: usize) -> Result<Self, ProfileError> {
        let count = self.stages.len();
        if first >= count || first < self.first_trained {
            return Err(ProfileError::FirstTrained { first, stages: count });
        }
        let stage = |(index, stage): (usize, StageCost)| match first {
            0 => stage,
            _ if index < first => stage.frozen(),
            _ if index == first => stage.first_trained(),
            _ => stage,
        };
        let stages = self.stages.into_iter().enumerate().map(stage).collect();
        Ok(Self { stages, first_trained: first, ..self })
    }

    /// The first stage that trains; see [`Profile::train_from`].
    pub fn first_trained(&self) -> usize {
        self.first_trained
    }

    /// The same profile for a vocabulary-parallel model: embedding and head are not part of its stages, and every
    /// rank has a piece of both.
    ///
    /// # Errors
    /// Returns [`ProfileError::Vocabulary`] if a number is negative, infinite or NaN.
    pub fn with_vocabulary(self, vocabulary: VocabularyCost) -> Result<Self, ProfileError> {
        match vocabulary.fault() {
            Some((field, value)) => Err(ProfileError::Vocabulary { field, value }),
            None => Ok(Self { vocabulary: Some(vocabulary), ..self }),
        }
    }

    /// The same links, skip edges, vocabulary and first stage that trains, with other stage costs.
    ///
    /// # Errors
    /// Returns the errors of [`Profile::new`], and [`ProfileError::Skip`] if an edge leads to a stage that no longer
    /// exists.
    pub(crate) fn with_stages(&self, stages: Vec<StageCost>) -> Result<Self, ProfileError> {
        let profile = Self::new(stages, self.links.clone())?.with_skips(self.skips.clone())?;
        Ok(Self { vocabulary: self.vocabulary, first_trained: self.first_trained, ..profile })
    }

    /// The skip edges, sorted.
    pub fn skips(&self) -> &[SkipEdge] {
        &self.skips
    }

    /// The costs of the stages, in model order.
    pub fn stages(&self) -> &[StageCost] {
        &self.stages
    }

    /// The links between ranks.
    pub fn links(&self) -> &LinkCosts {
        &self.links
    }

    /// The costs of a rank's pieces of embedding and head, if the profile is for a vocabulary-parallel model.
    pub fn vocabulary(&self) -> Option<&VocabularyCost> {
        self.vocabulary.as_ref()
    }

    /// The same stages with other links.
    ///
    /// # Errors
    /// Returns the errors of [`Profile::new`].
    pub fn with_links(self, links: LinkCosts) -> Result<Self, ProfileError> {
        links.check()?;
        Ok(Self { links, ..self })
    }

    /// Reads a profile from JSON.
    ///
    /// # Errors
    /// Returns [`ProfileError::Json`] with line and column if the text is not the JSON of a profile, and the
    /// errors of [`Profile::new`] and [`Profile::with_skips`].
    pub fn from_json(text: &str) -> Result<Self, ProfileError> {
        let form: StoredProfile = serde_json::from_str(text).map_err(|e| ProfileError::Json(e.to_string()))?;
        form.try_into()
    }

    /// Writes the profile as indented JSON. Reading it back gives the same profile, to the last bit.
    pub fn to_json(&self) -> String {
        // Serialization fails only for keys that are not strings; a profile has none.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

/// The stored form of a profile, before it is checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredProfile {
    stages: Vec<StageCost>,
    #[serde(default)]
    skips: Vec<SkipEdge>,
    #[serde(default)]
    links: LinkCosts,
    vocabulary: Option<VocabularyCost>,
    first_trained: Option<usize>,
}

impl TryFrom<StoredProfile> for Profile {
    type Error = ProfileError;

    fn try_from(form: StoredProfile) -> Result<Self, ProfileError> {
        let profile = Profile::new(form.stages, form.links)?
            .with_skips(form.skips)?
            .train_from(form.first_trained.unwrap_or(0))?;
        match form.vocabulary {
            Some(vocabulary) => profile.with_vocabulary(vocabulary),
            None => Ok(profile),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::link::{LinkCost, LinkOverride};

    #[test]
    fn numbers_that_are_no_amounts_are_refused_by_name() {
        let with = |cost| Profile::new(vec![StageCost::default(), cost], LinkCosts::default()).unwrap_err();
        let error = with(StageCost { forward: -1.0, ..StageCost::default() });
        assert_eq!(error, ProfileError::Stage { stage: 1, field: "forward", value: "-1".into() });
        let error = with(StageCost { weight: Some(f64::NAN), ..StageCost::default() });
        assert_eq!(error, ProfileError::Stage { stage: 1, field: "weight", value: "NaN".into() });
        let error = with(StageCost { freed_at_input_bytes: 1.0, ..StageCost::default() });
        assert_eq!(error, ProfileError::FreesTooMuch { stage: 1 });
        assert_eq!(Profile::new(vec![], LinkCosts::default()), Err(ProfileError::NoStage));
        let links = LinkCosts { default: LinkCost { latency: 0.0, bandwidth: Some(0.0) }, between: vec![] };
        let error = Profile::new(vec![StageCost::default()], links).unwrap_err();
        assert!(matches!(error, ProfileError::LinkCost { field: "bandwidth", .. }), "{error}");
    }

    #[test]
    fn a_profile_survives_the_round_trip() {
        let stage = StageCost { forward: 0.125, overlap: Some(0.3), message_bytes: 7.0, ..StageCost::default() };
        let between = vec![LinkOverride { from: 1, to: 0, latency: 0.1, bandwidth: None }];
        let links = LinkCosts { default: LinkCost { latency: 0.5, bandwidth: Some(1e9) }, between };
        let profile = Profile::new(vec![stage, StageCost::default(), stage], links).unwrap();
        let profile = profile.with_skips(vec![(0, 2).into()]).unwrap();
        let pieces = VocabularyCost { head_forward: 0.25, weight_bytes: 3.0, ..VocabularyCost::default() };
        let parallel = profile.clone().train_from(1).unwrap().with_vocabulary(pieces).unwrap();
        assert_eq!(Profile::from_json(&parallel.to_json()).unwrap(), parallel);
        assert_eq!(Profile::from_json(&profile.to_json()).unwrap(), profile);
    }

    #[test]
    fn errors_say_where_and_what() {
        let error = |text: &str| Profile::from_json(text).unwrap_err().to_string();
        assert!(error(r#"{"stages": [{"forward": 1, "foward": 2}]}"#).contains("unknown field `foward`"));
        assert!(error(r#"{"stages": [{"input": 1}]}"#).contains("missing field `forward`"));
        assert!(error(r#"{"stages": [{"forward": -1}]}"#).contains("stage 0: `forward` is -1"));
        assert!(error(r#"{"stages": []}"#).contains("no stage"));
        assert!(error(r#"{"stages": [{"forward": 1}], "skips": [[0, 2]]}"#).contains("needs a stage 2"));
        assert!(
            error(r#"{"stages": [{"forward": 1}], "vocabulary": {"head_input": -1}}"#).contains("`head_input` is -1")
        );
        assert!(error("{").contains("line 1"));
        assert!(error(r#"{"stages": [{"forward": NaN}]}"#).contains("line 1"));
    }
}
