//! What all ranks decide alike: costs that they share, and a plan that all of them take up.
//!
//! Guarantees: ranks that are processes go on with the same profile to the last bit and with the same plan, or all get
//! an error that names the one that differs.
//!
//! 1. Every rank tells every other one what it measured, as text; each number is replaced by the median
//!    ([`Profile::median`]). What is computed from it comes out alike everywhere.
//! 2. Before a plan is taken up, its fingerprint is compared. Only plans over the same placement are, so nothing moves.
//!
//! Follows `align_runtime_estimations_across_all_distributed_ranks` of PyTorch's `torch/_inductor/comms.py`.

use crate::cost::Profile;
use crate::execute::ExecuteError;
use crate::link::{decode, encode};
use crate::train::build::start::fingerprint;
use crate::train::build_error::BuildError;
use crate::train::choose::decision::AutoError;
use crate::train::control::command::{Answer, Command};
use crate::train::error::PipelineError;
use crate::train::pipeline::{Pipeline, SourceBox};
use crate::train::plans::source::Source;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::sync::Arc;

impl Pipeline {
    /// The profile that all ranks share: what each of them measured, replaced by the median of every number, so that
    /// whatever is decided by it comes out alike on all of them. (Ranks of one process have one caller, and one profile.)
    ///
    /// # Errors
    /// [`AutoError::Pipeline`], as [`Pipeline::step`]; [`AutoError::Profile`] if some rank's is about other stages.
    pub fn agree_on_profile(&mut self, own: &Profile) -> Result<Profile, AutoError> {
        // Its text leaves out what is not set, which only a format with field names can carry.
        let told: Vec<String> = self.tell(&own.to_json())?;
        let profiles: Result<Vec<Profile>, _> = told.iter().map(|text| Profile::from_json(text)).collect();
        Ok(Profile::median(&profiles?)?)
    }

    /// The longest of what all ranks measured; seconds that every rank decides by alike.
    pub(crate) fn agree_on_longest(&mut self, own: f64) -> Result<f64, PipelineError> {
        Ok(self.tell(&own)?.into_iter().fold(own, f64::max))
    }

    /// Tells all ranks something, and gives what each of them said, by rank.
    pub(crate) fn tell<T: Serialize + DeserializeOwned>(&mut self, own: &T) -> Result<Vec<T>, PipelineError> {
        let rank = self.members.first().copied().unwrap_or(0);
        let failed = |source| PipelineError::Rank(ExecuteError::Link { rank, task: None, source });
        let bytes = encode(rank, own).map_err(failed)?;
        let mut told = Vec::new();
        for (peer, answer) in self.ask(&Command::Tell(bytes.into()))?.into_iter().enumerate() {
            if let Answer::Told(bytes) = answer {
                told.push(decode(rank, peer, &bytes).map_err(failed)?);
            }
        }
        Ok(told)
    }

    /// Runs something else over the same placement from now on; all ranks have to have chosen the same.
    pub(crate) fn adopt(&mut self, source: Source) -> Result<(), AutoError> {
        let microbatches = source.microbatches();
        let source = source.with_skips(&self.source.0.skips());
        let checked = source.training_plan(microbatches, self.transport, self.groups)?;
        let plan = checked.plan();
        if plan.placement() != &self.placement {
            return Err(BuildError::Moved { schedule: plan.name().to_owned(), microbatches }.into());
        }
        let chosen = format!("{} #{:016x}", plan.name(), fingerprint(plan));
        let told = self.tell(&chosen)?;
        if let Some(rank) = told.iter().position(|theirs| *theirs != chosen) {
            return Err(PipelineError::Apart { rank, theirs: told[rank].clone(), others: chosen }.into());
        }
        self.source = Arc::new(SourceBox(source));
        self.training = HashMap::from([(microbatches, Arc::new(checked))]);
        self.evaluation.clear();
        Ok(())
    }
}
