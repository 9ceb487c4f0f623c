//! The request to the planner.

use super::costs::Costs;
use super::options::AutoOptions;
use crate::train::pipeline::Pipeline;
use burn_pipeline_plan::plan::PlacementKind;
use burn_pipeline_plan::planner::{Cut, PassChoice, Recompute, Request};
use burn_pipeline_plan::schedule::Size;

/// Numbers of stages per rank to try, besides that of the first plan.
const CHUNKS: [usize; 3] = [1, 2, 4];

/// Requests the best plan over the same ranks. Unless stages can move, it keeps the stages and their placement.
///
/// Plans are priced for the link's transport. A plan made by passes for a stricter transport is legal there, too.
pub(super) fn request(
    pipeline: &Pipeline,
    size: Size,
    options: &AutoOptions,
    costs: &Costs,
    stages_move: bool,
) -> Request {
    let request = Request::new(costs.workloads.clone(), size.ranks, costs.links.clone());
    let placements = match stages_move {
        false => Some(vec![pipeline.placement().kind()]),
        // Copies of a stage would each keep their own running statistics, so such plans are refused when they run.
        true if pipeline.stages.have_forward_state() => {
            Some(vec![PlacementKind::Loop, PlacementKind::V, PlacementKind::Wave])
        }
        true => None,
    };
    let mut chunks = vec![size.chunks];
    let cut_freely = stages_move && costs.cut.layers() > costs.cut.stages();
    if cut_freely {
        let fits = |chunks: &usize| *chunks != size.chunks && chunks * size.ranks <= costs.cut.layers();
        chunks.extend(CHUNKS.iter().copied().filter(fits));
    }
    let recompute = match stages_move && options.recompute {
        true => vec![Recompute::Never, Recompute::WhereNeeded, Recompute::Everywhere],
        false => vec![Recompute::Never],
    };
    Request {
        cap: options.cap,
        state_factor: options.state_factor,
        chunks,
        placements,
        cuts: if cut_freely { vec![Cut::Even, Cut::Optimal, Cut::Fitting] } else { vec![Cut::Even] },
        recompute,
        passes: PassChoice::ALL.to_vec(),
        overlap_passes: options.overlap_passes.clone(),
        overlap: options.overlap,
        unpipelined: false,
        simulate: pipeline.simulate,
        ..request
    }
}
