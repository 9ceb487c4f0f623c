//! The stored form of a [`Plan`]: its named fields, with actions as readable text.
//!
//! Guarantees: a plan read back is valid ([`Plan::new`]); whether it can run is for [`check`](super::check) to prove.

use super::action::Action;
use super::error::PlanError;
use super::placement::Placement;
use super::rows::Plan;
use super::skip_edge::SkipEdge;
use super::task::Task;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A plan before it is checked; [`Plan`] serializes to the same fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredPlan {
    name: String,
    placement: Placement,
    microbatches: Vec<usize>,
    rows: Vec<Vec<String>>,
    #[serde(default)]
    skips: Vec<SkipEdge>,
    first_trained: Option<usize>,
}

/// Serializes as text.
impl Serialize for Action {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Serializes as text.
impl Serialize for Task {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Plan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        StoredPlan::deserialize(deserializer)?.read().map_err(D::Error::custom)
    }
}

impl StoredPlan {
    fn read(self) -> Result<Plan, PlanError> {
        let row = |row: &Vec<String>| row.iter().map(|cell| cell.parse()).collect::<Result<Vec<Action>, _>>();
        let rows = self.rows.iter().map(row).collect::<Result<_, _>>()?;
        let plan = Plan::new(self.name, self.placement, self.microbatches, rows)?.with_skips(self.skips)?;
        match self.first_trained.unwrap_or(0) {
            first if first < plan.stages() => Ok(plan.with_first_trained(first)),
            first => Err(PlanError::FirstTrained { first, stages: plan.stages() }),
        }
    }
}
