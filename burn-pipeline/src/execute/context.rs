//! Where in a step an error came: what the action had got from whom, and the plan's rows around it.
//!
//! `locate.rs` adds it to errors.

use crate::plan::{StageId, Task};
use crate::stage::PayloadSpec;
use std::fmt;

/// A value that a task had got when it failed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Received {
    /// The task.
    pub task: Task,
    /// What the value is: "input", "extras", "target", "gradient of the output".
    pub what: &'static str,
    /// The stage that sent it, with its rank; `None` if it is of the batch.
    pub from: Option<(StageId, usize)>,
    /// Its shapes and element types.
    pub spec: PayloadSpec,
}

/// What a plan was run for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A training step, counted from 1.
    Step(u64),
    /// An evaluation.
    Evaluation,
    /// Learning the stages' metadata, on zeros.
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

/// Where in a run of the plan an error came: the step, what the failing task had got, and the plan around it. It is a text.
#[derive(Debug, Clone, PartialEq)]
pub struct RunContext {
    /// What the plan was run for.
    pub(crate) purpose: Purpose,
    /// The plan's name, with the data-parallel replica that ran it where there are several.
    pub(crate) plan: String,
    /// The type of the stage's module, if the error is of a stage.
    pub(crate) module: Option<&'static str>,
    /// What the failing task had got.
    pub(crate) received: Vec<Received>,
    /// The index of the action in its rank's row.
    pub(crate) cell: usize,
    /// The plan's rows around the action, one column for each rank of one replica's pipeline, with the place marked.
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
