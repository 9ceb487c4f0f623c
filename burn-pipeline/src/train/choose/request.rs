//! What the planner is asked, and what is run of its answer.

use super::decision::AutoError;
use super::options::AutoOptions;
use crate::cost::{Layers, Profile};
use crate::plan::PlacementKind;
use crate::planner::{Cut, PassChoice, PlannerReport, Recompute, Request, Strategy, Workload};
use crate::schedule::{Schedule, Size, by_name};
use crate::train::pipeline::Pipeline;
use crate::train::plans::Source;
use std::sync::Arc;

/// Asks for the best plan that runs the same stages on the same ranks.
///
/// Plans are priced for the link's own transport. A plan that passes made for a stricter one is legal there, too.
pub(super) fn request(
    pipeline: &Pipeline,
    size: Size,
    options: &AutoOptions,
    profile: &Profile,
) -> Result<Request, AutoError> {
    let workload = Workload::new(size.microbatches, Layers::of_profile(profile)?);
    let request = Request::new(vec![workload], size.ranks, profile.links().clone());
    // Stages cannot move between processes.
    let placements = match pipeline.ranks.are_processes() {
        true => Some(vec![pipeline.placement().kind()]),
        // Copies of a stage would each keep running statistics of their own, so such plans are refused when they run.
        false if pipeline.stages.have_forward_state() => {
            Some(vec![PlacementKind::Loop, PlacementKind::V, PlacementKind::Wave])
        }
        false => None,
    };
    Ok(Request {
        cap: options.cap,
        state_factor: options.state_factor,
        chunks: vec![size.chunks],
        placements,
        cuts: vec![Cut::Even],
        recompute: vec![Recompute::Never],
        passes: PassChoice::ALL.to_vec(),
        unpipelined: false,
        simulate: pipeline.simulate,
        ..request
    })
}

/// The best plan's family, if the family builds exactly this plan, so that batches of other sizes can be run too; else the
/// plan itself.
pub(super) fn source_of(planned: &PlannerReport, size: Size) -> Source {
    let plan = planned.plan.plan();
    let builds_it = |family: &dyn Schedule| {
        let built = family.build(size).ok().and_then(|built| built.with_skips(plan.skips().to_vec()).ok());
        built.and_then(|built| built.with_transfers().ok()).is_some_and(|built| built.rows() == plan.rows())
    };
    let family = match &planned.best.strategy {
        Strategy::Family(name) => by_name(name).ok().filter(|family| builds_it(family.as_ref())),
        _ => None,
    };
    match family {
        Some(family) => Source::Schedule(Arc::from(family), size),
        None => Source::Plan(Arc::new(plan.clone())),
    }
}
