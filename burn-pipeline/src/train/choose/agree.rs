//! What all ranks agree on: costs, and decisions made by them.
//!
//! Guarantees: ranks in processes go on with the same profile, to the last bit.
//!
//! Every rank gives every other one what it measured; each number is replaced by the median ([`Profile::median`]). What
//! is computed from it comes out alike everywhere. Follows `align_runtime_estimations_across_all_distributed_ranks` of
//! PyTorch's `torch/_inductor/comms.py`.

use super::decision::AutoError;
use crate::cost::Profile;
use crate::train::control::Exchange;
use crate::train::error::PipelineError;
use crate::train::pipeline::Pipeline;

impl Pipeline {
    /// The profile that all ranks share: every number is the median of what the ranks measured, so that what is decided
    /// by it comes out alike on all of them. (Ranks of one process have one caller, and one profile.)
    ///
    /// # Errors
    /// [`AutoError::Pipeline`], as [`Pipeline::step`]; [`AutoError::Profile`] if some rank's is about other stages.
    pub fn agree_on_profile(&mut self, own: &Profile) -> Result<Profile, AutoError> {
        // A profile leaves out what is not set, so it travels as JSON, which has field names.
        let profiles = self.ask(Exchange(own.to_json()))?;
        let profiles: Result<Vec<Profile>, _> = profiles.iter().map(|text| Profile::from_json(text)).collect();
        Ok(Profile::median(&profiles?)?)
    }

    /// The longest of what all ranks measured, in seconds, step by step: ranks that decide by it decide alike.
    pub(super) fn agree_on_longest(&mut self, own: Vec<f64>) -> Result<Vec<f64>, PipelineError> {
        let longest = |all: Vec<f64>, other: Vec<f64>| all.iter().zip(other).map(|(a, b)| a.max(b)).collect();
        Ok(self.ask(Exchange(own.clone()))?.into_iter().fold(own, longest))
    }

    /// Fails on all ranks if one of them could not measure.
    pub(super) fn agree_on_success<T>(&mut self, own: Result<T, AutoError>) -> Result<T, AutoError> {
        let failure = own.as_ref().err().map(ToString::to_string);
        let failures = self.ask(Exchange(failure))?.into_iter().enumerate();
        let first = failures.filter_map(|(rank, failure)| Some((rank, failure?))).next();
        match (own, first) {
            (Ok(_), Some((rank, message))) => Err(AutoError::Elsewhere { rank, message }),
            (own, _) => own,
        }
    }
}
