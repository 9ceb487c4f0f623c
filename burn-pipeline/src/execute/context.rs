//! Where in a step an error occurred: the inputs of the action and their senders, and the plan's rows around it.
//!
//! `locate.rs` adds it to errors.

use crate::payload::PayloadSpec;
use burn_pipeline_plan::plan::{StageId, Task};
use std::fmt;

/// An input of a task that failed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Received {
    pub task: Task,
    /// What the value is: "input", "extras", "target", "gradient of the output".
    pub what: &'static str,
    /// The stage that sent it, with its rank; `None` if it is part of the batch.
    pub from: Option<(StageId, usize)>,
    /// Its shapes and element types.
    pub spec: PayloadSpec,
}

/// Why a plan was run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A training step, counted from 1.
    Step(u64),
    Evaluation,
    /// Recording the stages' metadata, on zeros.
    Metadata,
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Purpose::Step(step) => write!(f, "step {step}"),
            Purpose::Evaluation => f.write_str("an evaluation"),
            Purpose::Metadata => f.write_str("a run on zeros that learns metadata"),
        }
    }
}

/// Where in a run of the plan an error occurred: the step, the failed task's inputs, and the plan around it, as
/// text.
#[derive(Debug, Clone, PartialEq)]
pub struct RunContext {
    /// Why the plan was run.
    pub(crate) purpose: Purpose,
    /// The plan's name, with the data-parallel replica that ran it if there are several.
    pub(crate) plan: String,
    /// The type of the stage's module, if the error is in a stage.
    pub(crate) module: Option<&'static str>,
    /// The inputs of the failed task.
    pub(crate) received: Vec<Received>,
    /// The index of the action in its rank's row.
    pub(crate) cell: usize,
    /// The plan's rows around the action, one column for each rank of one replica's pipeline, with the action
    /// marked.
    pub(crate) rows: String,
}

impl fmt::Display for RunContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in {}, plan {}", self.purpose, self.plan)?;
        if let Some(module) = self.module {
            write!(f, ", a stage of type `{module}`")?;
        }
        for Received { what, from, spec, .. } in &self.received {
            match from {
                Some((stage, rank)) => write!(f, "\n  it got the {what} {spec} from stage {stage} on rank {rank}")?,
                None => write!(f, "\n  it got the {what} {spec} from the batch")?,
            }
        }
        write!(f, "\n{}", self.rows)
    }
}
