//! What a pipeline runs, and the plans that are made of it: lowered, and proved for the transport they will run on.

use crate::pass::{insert_reduce_grad, insert_transfers, insert_unshard};
use crate::plan::{CheckOptions, CheckedPlan, Op, Placement, Plan, SkipEdge, StageId, Transport};
use crate::schedule::{ForwardOnly, Schedule, Size};
use crate::train::build_error::BuildError;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What data-parallel replicas ask of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Groups {
    pub(crate) replicas: usize,
    /// The most stages whose parameters a rank may have gathered, where they are sharded.
    pub(crate) gathered: Option<usize>,
}

impl Groups {
    /// The plan with transfers, and with `UNSHARD` and `RESHARD` where parameters are sharded.
    fn lower(self, plan: &Plan) -> Result<Plan, BuildError> {
        match self.gathered {
            None => Ok(insert_transfers(plan)?),
            Some(most) => Ok(insert_transfers(&insert_unshard(plan, most)?)?),
        }
    }
}

/// What is to be run: a family at a size, or one given plan.
#[derive(Clone)]
pub(crate) enum Source {
    Schedule(Arc<dyn Schedule>, Size),
    Plan(Arc<Plan>),
    /// For a model with edges past the next stage.
    WithSkips(Box<Source>, Arc<[SkipEdge]>),
}

impl Source {
    /// The same for a model with these edges, beside those that it (or a given plan) has.
    pub(crate) fn with_skips(self, skips: &[SkipEdge]) -> Self {
        let own = if let Source::Plan(plan) = &self { plan.skips().to_vec() } else { self.skips() };
        let more = own.into_iter().filter(|edge| !skips.contains(edge));
        let skips: Vec<SkipEdge> = skips.iter().copied().chain(more).collect();
        let bare = if let Source::WithSkips(bare, _) = self { *bare } else { self };
        if skips.is_empty() { bare } else { Source::WithSkips(Box::new(bare), skips.into()) }
    }

    pub(crate) fn skips(&self) -> Vec<SkipEdge> {
        if let Source::WithSkips(_, skips) = self { skips.to_vec() } else { Vec::new() }
    }

    fn plan(&self, microbatches: usize) -> Result<Plan, BuildError> {
        match self {
            Source::WithSkips(source, skips) => Ok(source.plan(microbatches)?.with_skips(skips.to_vec())?),
            Source::Schedule(schedule, size) => Ok(schedule.build(Size { microbatches, ..*size })?),
            Source::Plan(plan) if plan.total_microbatches() == microbatches => Ok(Plan::clone(plan)),
            Source::Plan(plan) => {
                Err(BuildError::FixedPlan { planned: plan.total_microbatches(), wanted: microbatches })
            }
        }
    }

    /// Microbatches that were asked for.
    pub(crate) fn microbatches(&self) -> usize {
        match self {
            Source::WithSkips(source, _) => source.microbatches(),
            Source::Schedule(_, size) => size.microbatches,
            Source::Plan(plan) => plan.total_microbatches(),
        }
    }

    /// The lowered, checked plan that trains this many microbatches, with what `groups` ask for.
    pub(crate) fn training_plan(
        &self,
        microbatches: usize,
        transport: Transport,
        groups: Groups,
    ) -> Result<CheckedPlan, BuildError> {
        let plan = groups.lower(&self.plan(microbatches)?)?;
        let reduced = groups.replicas > 1 && plan.has_backward();
        check(if reduced { insert_reduce_grad(&plan) } else { plan }, transport)
    }

    /// The lowered, checked plan that evaluates this many microbatches over the same placement.
    pub(crate) fn evaluation_plan(
        &self,
        placement: &Placement,
        microbatches: usize,
        transport: Transport,
        groups: Groups,
    ) -> Result<CheckedPlan, BuildError> {
        let counts = match placement.routes() {
            1 => vec![microbatches],
            _ => vec![microbatches.div_ceil(2), microbatches / 2],
        };
        let plan = ForwardOnly::over(placement.clone(), counts)?.with_skips(self.skips())?;
        check(groups.lower(&plan)?, transport)
    }
}

fn check(plan: Plan, transport: Transport) -> Result<CheckedPlan, BuildError> {
    let options = CheckOptions { transport, ..CheckOptions::default() };
    Ok(plan.check(&options)?)
}

/// The stages whose backward a plan splits.
pub(crate) fn split_stages(plan: &Plan) -> BTreeSet<StageId> {
    let tasks = (0..plan.placement().ranks()).flat_map(|rank| plan.row(rank)).flat_map(|action| action.tasks());
    tasks.filter(|task| matches!(task.op(), Op::BackwardInput | Op::BackwardWeight)).map(|task| task.stage()).collect()
}
