//! The choices that were compared: their seconds and peaks, the Pareto front, and the unusable ones with their reasons.

use crate::planner::PlannerReport;
use serde::Serialize;

/// One usable choice, such as a plan.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Choice {
    /// Its name.
    pub name: String,
    /// Seconds of a step.
    pub seconds: f64,
    /// The most memory that a rank holds.
    pub peak: f64,
    /// True if no other choice is both faster and smaller.
    pub pareto: bool,
}

/// The choices that were compared, and those that were left out.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Choices {
    /// The unit of peaks: `bytes` or `rank-microbatches`.
    pub unit: String,
    /// The usable choices, fastest first.
    pub usable: Vec<Choice>,
    /// The names of unusable choices, each with the reason.
    pub dropped: Vec<(String, String)>,
}

impl From<&PlannerReport> for Choices {
    fn from(report: &PlannerReport) -> Self {
        let choice = |candidate: &crate::planner::Candidate| Choice {
            name: candidate.to_string(),
            seconds: candidate.seconds,
            peak: candidate.peak_bytes,
            pareto: candidate.pareto,
        };
        let usable = report.candidates.iter().map(choice).collect();
        Self { unit: "bytes".into(), usable, dropped: report.dropped.clone() }
    }
}
