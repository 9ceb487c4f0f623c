//! The stored form of a profile, as JSON that a person can write.
//!
//! ```json
//! { "stages": [ { "forward": 0.0185, "input": 0.0181, "weight": 0.0093, "activation_bytes": 3.1e9 } ],
//!   "skips": [],
//!   "links": { "default": { "latency": 0.0006, "bandwidth": 2.4e10 } } }
//! ```
//!
//! Guarantees: what is read went through [`Profile::new`]; a field that is not known is refused by name.

use super::error::ProfileError;
use super::link::LinkCosts;
use super::profile::{Profile, StageCost};
use crate::plan::SkipEdge;
use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProfileForm {
    stages: Vec<StageCost>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    skips: Vec<SkipEdge>,
    #[serde(default)]
    links: LinkCosts,
}

impl From<Profile> for ProfileForm {
    fn from(profile: Profile) -> Self {
        let (stages, skips) = (profile.stages().to_vec(), profile.skips().to_vec());
        Self { stages, skips, links: profile.links().clone() }
    }
}

impl TryFrom<ProfileForm> for Profile {
    type Error = ProfileError;

    fn try_from(form: ProfileForm) -> Result<Self, ProfileError> {
        Profile::new(form.stages, form.links)?.with_skips(form.skips)
    }
}

impl Profile {
    /// Reads the JSON form.
    ///
    /// # Errors
    /// [`ProfileError::Json`] with line and column where the text is not a profile's JSON, or what
    /// [`Profile::new`] refuses.
    pub fn from_json(text: &str) -> Result<Self, ProfileError> {
        let form: ProfileForm = serde_json::from_str(text).map_err(|e| ProfileError::Json(e.to_string()))?;
        form.try_into()
    }

    /// Writes the JSON form, indented.
    pub fn to_json(&self) -> String {
        // A profile holds strings for keys and finite numbers: nothing that JSON cannot say.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{LinkCost, LinkOverride};

    #[test]
    fn a_profile_survives_the_round_trip() {
        let stage = StageCost { forward: 0.125, overlap: Some(0.3), message_bytes: 7.0, ..StageCost::default() };
        let between = vec![LinkOverride { from: 1, to: 0, latency: 0.1, bandwidth: None }];
        let links = LinkCosts { default: LinkCost { latency: 0.5, bandwidth: Some(1e9) }, between };
        let profile = Profile::new(vec![stage, StageCost::default(), stage], links).unwrap();
        let profile = profile.with_skips(vec![(0, 2).into()]).unwrap();
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
        assert!(error("{").contains("line 1"));
        assert!(error(r#"{"stages": [{"forward": NaN}]}"#).contains("line 1"));
    }
}
