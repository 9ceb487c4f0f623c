//! What was compared: seconds and peaks, those that nothing beats, and what was left out and why.

use crate::planner::PlannerReport;
use serde::Serialize;

/// One thing that could be run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Choice {
    /// What it is.
    pub name: String,
    /// Seconds of a step.
    pub seconds: f64,
    /// The most that a rank holds.
    pub peak: f64,
    /// Whether nothing else is both faster and smaller.
    pub pareto: bool,
}

/// What was compared, and what was left out.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Choices {
    /// What peaks count: `bytes`, `rank-microbatches`.
    pub unit: String,
    /// The choices, fastest first.
    pub usable: Vec<Choice>,
    /// What cannot be used, each with the reason.
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
