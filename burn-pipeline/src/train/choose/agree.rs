//! What all ranks agree on: costs, and decisions based on them.
//!
//! Guarantees: ranks in processes use the same profile, to the last bit.
//!
//! All ranks exchange their measurements, and each number is replaced by the median ([`Profile::median`]). Everything
//! computed from it is then the same everywhere. Follows `align_runtime_estimations_across_all_distributed_ranks` of
//! PyTorch's `torch/_inductor/comms.py`.

use super::decision::AutoError;
use crate::train::control::Exchange;
use crate::train::error::PipelineError;
use crate::train::pipeline::Pipeline;
use burn_pipeline_plan::cost::Profile;

impl Pipeline {
    /// Returns a profile shared by all ranks: every number is the median of the ranks' measurements, so decisions based
    /// on it are the same on all ranks. (Ranks of one process have one caller, and one profile.)
    ///
    /// # Errors
    /// Returns [`AutoError::Pipeline`] as [`Pipeline::step`] does, or [`AutoError::Profile`] if a rank's profile has
    /// other stages.
    pub fn agree_on_profile(&mut self, own: &Profile) -> Result<Profile, AutoError> {
        // A profile leaves out unset fields, so it is sent as JSON, which has field names.
        let profiles = self.ask(Exchange(own.to_json()))?;
        let profiles: Result<Vec<Profile>, _> = profiles.iter().map(|text| Profile::from_json(text)).collect();
        Ok(Profile::median(&profiles?)?)
    }

    /// Checks that all ranks in processes have the same text, of a plan or of options.
    pub(super) fn agree_on_text(&mut self, own: String) -> Result<(), PipelineError> {
        let all = self.ask(Exchange(own.clone()))?;
        match all.iter().position(|theirs| *theirs != own) {
            Some(rank) => Err(PipelineError::Diverged { rank, theirs: all[rank].clone(), others: own }),
            None => Ok(()),
        }
    }

    /// For each step, the longest of all ranks' measured seconds, so that ranks that decide by it decide alike.
    pub(super) fn agree_on_longest(&mut self, own: Vec<f64>) -> Result<Vec<f64>, PipelineError> {
        let longest = |all: Vec<f64>, other: Vec<f64>| all.iter().zip(other).map(|(a, b)| a.max(b)).collect();
        Ok(self.ask(Exchange(own.clone()))?.into_iter().fold(own, longest))
    }

    /// Fails on all ranks if one of them could not measure.
    pub(super) fn agree_on_success<T>(&mut self, own: Result<T, AutoError>) -> Result<T, AutoError> {
        let failure = own.as_ref().err().map(ToString::to_string);
        let first = first_failure(self.ask(Exchange(failure))?);
        match (own, first) {
            (Ok(_), Some((rank, message))) => Err(AutoError::Elsewhere { rank, message }),
            (own, _) => own,
        }
    }
}

/// The first rank that failed, and why.
pub(super) fn first_failure(failures: Vec<Option<String>>) -> Option<(usize, String)> {
    failures.into_iter().enumerate().find_map(|(rank, failure)| Some((rank, failure?)))
}
