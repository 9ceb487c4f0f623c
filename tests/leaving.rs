//! A rank that leaves a job between two steps, over any transport, because its data loader returns an error or
//! panics.

use burn_pipeline::train::{Pipeline, PipelineError};

/// How a rank leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaving {
    /// It drops its pipeline, as when `main` returns an error.
    Drop,
    /// It gives a reason.
    Say,
    /// It panics while it owns its pipeline.
    Panic,
}

impl Leaving {
    /// All ways of leaving.
    pub const ALL: [Leaving; 3] = [Leaving::Drop, Leaving::Say, Leaving::Panic];

    /// The way of this name, as `Debug` prints it.
    ///
    /// # Panics
    /// If there is none.
    pub fn named(name: &str) -> Self {
        let found = Self::ALL.into_iter().find(|leaving| format!("{leaving:?}") == name);
        found.unwrap_or_else(|| panic!("nobody leaves by {name}"))
    }

    /// Leaves the job.
    ///
    /// # Panics
    /// For [`Leaving::Panic`].
    pub fn leave(self, mut pipeline: Pipeline) {
        match self {
            Leaving::Drop => drop(pipeline),
            Leaving::Say => {
                pipeline.leave("shard 17 cannot be read");
                assert!(matches!(pipeline.weights(), Err(PipelineError::Closed(_))));
            }
            Leaving::Panic => {
                let _held = pipeline;
                panic!("a broken data loader");
            }
        }
    }

    /// What the other ranks report about this rank, besides its number.
    pub fn says(self) -> &'static str {
        match self {
            Leaving::Drop => "which has left the job",
            Leaving::Say => "it left the job: shard 17 cannot be read",
            Leaving::Panic => "its program panicked outside of a step",
        }
    }
}
