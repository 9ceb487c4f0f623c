//! Chooses the first plan, and the plans to compare it with after the first steps.
//!
//! 1. The first plan is a zero-bubble one, over an even cut if layers may be cut.
//! 2. The planner's best plan is tried if it is predicted to be enough faster.
//! 3. The best 1F1B of all candidates (or else Interleaved1F1B) is tried too, because costs may be misleading, unless
//!    it is predicted to be much slower or there are no trials.
//!
//! With a seed the cut and the number of microbatches stay: forwards draw by stage and microbatch.

use super::contender::{Contender, Folder};
use super::costs::{Costs, Wanted};
use super::decision::{AutoError, Choice};
use super::options::AutoOptions;
use super::trials::Trials;
use crate::stage::Batch;
use crate::train::error::BuildError;
use crate::train::features::Feature;
use crate::train::pipeline::Pipeline;
use crate::train::plans::Source;
use crate::train::report::StepReport;
use crate::train::setup::Builder;
use burn_pipeline_plan::cost::{Layer, Layers, Partition, Profile};
use burn_pipeline_plan::plan::PlacementKind;
use burn_pipeline_plan::planner::{Cut, PassChoice, PlannerReport, Recompute, Request, Strategy, best_plan};
use burn_pipeline_plan::schedule::{Schedule, ScheduleError, Size, by_name};
use burn_pipeline_plan::simulate::simulate;
use std::collections::VecDeque;
use std::sync::Arc;

/// The schedules that are tried regardless of predictions; the first one that fits.
const PLAIN: [&str; 2] = ["1F1B", "Interleaved1F1B"];

/// The fraction of a pass by which predictions for these may be off.
const DOUBT: f64 = 0.5;

/// Numbers of stages per rank to try, besides that of the first plan.
const CHUNKS: [usize; 3] = [1, 2, 4];

/// The user's choices.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) builder: Builder,
    pub(super) size: Size,
    pub(super) options: AutoOptions,
    /// Costs to plan with, instead of measured ones.
    pub(super) profile: Option<Profile>,
}

/// Plans, and returns the contenders.
pub(super) fn compare(
    setting: &Setting,
    pipeline: &mut Pipeline,
    running: Contender,
    steps: &[StepReport],
    batch: &Batch,
) -> Result<(Box<Trials>, Choice), AutoError> {
    let folder = Folder::new(pipeline, setting.options.folder.as_deref())?;
    let stages_move = !pipeline.ranks.processes || (folder.is_shared && setting.builder.shared.is_empty());
    let costs = costs(setting, pipeline, &running, stages_move, steps, batch)?;
    let (plan, layers) = (pipeline.plans.current()?, &costs.workloads[0].layers);
    let profile = costs.cut.profile(layers, costs.links.clone())?;
    let seconds = simulate(plan.plan(), &profile, &pipeline.simulate)?.makespan;
    let request = request(setting, pipeline, &costs, stages_move);
    let planned = Box::new(best_plan(&request)?);
    tracing::info!(running = seconds, best = planned.best.seconds, choice = %planned.best, "plans priced");
    for report in &planned.overlap {
        tracing::info!(pass = report.pass, moves = report.moves(), %report, "overlap of the best plan");
    }
    let contenders = contenders(setting, &planned, &costs, &running, seconds)?;
    let first = running.name.clone();
    let AutoOptions { trial: steps, warm_up, .. } = setting.options;
    let trials = Trials { running, contenders, contest: None, folder, stages_move, steps, warm_up, switches: 0 };
    let choice =
        Choice { planned, running: first.clone(), first, seconds, running_seconds: seconds, trials: Vec::new() };
    Ok((Box::new(trials), choice))
}

fn costs(
    setting: &Setting,
    pipeline: &mut Pipeline,
    running: &Contender,
    stages_move: bool,
    steps: &[StepReport],
    batch: &Batch,
) -> Result<Costs, AutoError> {
    let stages = pipeline.placement().stages();
    let cuts_layers = stages_move && setting.options.layers.is_some() && setting.builder.seed.is_none();
    let (cut, builder) = match running.builder.cut.clone().filter(|_| cuts_layers) {
        Some(cut) => (cut, &setting.builder),
        None => (Partition::even(stages, stages)?, &running.builder),
    };
    let fixed = pipeline.stages.facts.iter().any(|facts| facts.has_forward_state) || setting.builder.seed.is_some();
    let other = |&count: &usize| !fixed && count > 0 && count != setting.size.microbatches;
    let others: Vec<usize> = setting.options.microbatches.iter().copied().filter(other).collect();
    let (microbatches, bytes) = (setting.size.microbatches, setting.options.cap.is_some());
    let wanted = Wanted { builder, cut: &cut, microbatches, others: &others, bytes };
    match &setting.profile {
        Some(profile) => Costs::known(pipeline, profile, &wanted),
        None => Costs::measured(pipeline, steps, batch, &wanted),
    }
}

/// Requests the best plan over the same ranks. Unless stages can move, it keeps the stages and their placement.
///
/// Plans are priced for the link's transport. A plan made by passes for a stricter transport is legal there, too.
fn request(setting: &Setting, pipeline: &Pipeline, costs: &Costs, stages_move: bool) -> Request {
    let Setting { size, options, .. } = setting;
    let request = Request::new(costs.workloads.clone(), size.ranks, costs.links.clone());
    let placements = match stages_move {
        false => Some(vec![pipeline.placement().kind()]),
        // Copies of a stage would each keep their own running statistics, so such plans are refused when they run.
        true if pipeline.stages.facts.iter().any(|facts| facts.has_forward_state) => {
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

/// The plans to try, in order.
fn contenders(
    setting: &Setting,
    planned: &PlannerReport,
    costs: &Costs,
    running: &Contender,
    seconds: f64,
) -> Result<VecDeque<Contender>, AutoError> {
    let (mut contenders, ranks) = (VecDeque::new(), setting.size.ranks);
    let best = &planned.best;
    if best.seconds < seconds * (1.0 - setting.options.gain) {
        contenders.push_back(Contender::new(best, Some(&planned.plan), costs, running, ranks)?);
    }
    let of = |name: &str| {
        let mut found = planned.candidates.iter();
        found.find(|found| found.strategy == Strategy::Schedule(name.to_owned()) && found.passes == PassChoice::AsBuilt)
    };
    let plain = PLAIN.iter().find_map(|name| of(name));
    let worth = |seconds_of: f64| seconds_of < seconds * (1.0 - setting.options.gain + DOUBT);
    if let Some(plain) = plain.filter(|plain| setting.options.trial > 0 && worth(plain.seconds)) {
        let is_best = (&plain.strategy, &plain.partition) == (&best.strategy, &best.partition);
        if !is_best || contenders.is_empty() {
            contenders.push_back(Contender::new(plain, None, costs, running, ranks)?);
        }
    }
    Ok(contenders)
}

/// The plan that runs first.
pub(super) fn first(builder: &Builder, size: Size, options: &AutoOptions) -> Result<Contender, BuildError> {
    builder.goes_with(Feature::AutoPipeline)?;
    let (schedule, mut builder) = (first_schedule(size)?, builder.clone());
    if let Some(layers) = options.layers.filter(|_| builder.seed.is_none()) {
        let cut = builder.cut.take().map_or_else(|| Partition::even(layers, size.ranks * size.chunks), Ok)?;
        let costs = Layers::new(vec![Layer::new('L'); layers])?.with_skips(builder.skips_between(layers))?;
        builder.cut_with(cut, &costs)?;
    }
    let name = schedule.build(size)?.name().to_owned();
    Ok(Contender { source: Source::Schedule(Arc::from(schedule), size), builder, name, seconds: 0.0 })
}

/// A schedule that splits its backward and works at any size with this number of stages per rank.
pub(super) fn first_schedule(size: Size) -> Result<Box<dyn Schedule>, ScheduleError> {
    by_name(if size.chunks == 1 { "ZBH1" } else { "InterleavedZeroBubble" })
}
