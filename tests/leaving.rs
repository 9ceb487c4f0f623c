//! A rank that leaves a job between two steps, whatever its transport: its data loader returns an error, or panics.

use burn_pipeline::train::{Pipeline, PipelineError};

/// How a rank leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaving {
    /// Its pipeline is dropped, as where `main` returns an error, or goes on without it.
    Drop,
    /// It says why.
    Say,
    /// It panics while it holds its pipeline.
    Panic,
}

impl Leaving {
    /// All of them.
    pub const ALL: [Leaving; 3] = [Leaving::Drop, Leaving::Say, Leaving::Panic];

    /// The one of this name, as `Debug` prints it.
    ///
    /// # Panics
    /// If there is none.
    pub fn named(name: &str) -> Self {
        let found = Self::ALL.into_iter().find(|leaving| format!("{leaving:?}") == name);
        found.unwrap_or_else(|| panic!("nobody leaves by {name}"))
    }

    /// Leaves.
    ///
    /// # Panics
    /// If that is how.
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

    /// What the others say of the rank, beside its number.
    pub fn says(self) -> &'static str {
        match self {
            Leaving::Drop => "which has left the job",
            Leaving::Say => "it left the job: shard 17 cannot be read",
            Leaving::Panic => "its program panicked outside of a step",
        }
    }
}
