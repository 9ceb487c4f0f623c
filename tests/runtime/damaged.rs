//! A plan that passes the check computes what the plain loop computes, whoever wrote it.
//!
//! 1. The test starts from a plan of any schedule, with or without skip edges, merged backwards, fused cells,
//!    gathered and released parameters, reductions, transfers and waits.
//! 2. Up to six of its cells are removed, repeated, moved, swapped, fused, or inserted.
//! 3. Either it is refused when the pipeline is built, or three steps of it have the losses and weights of the
//!    plain loop: bit for bit if gradients are added in microbatch order and no value skips a stage, else up to
//!    rounding.

use crate::cases::{range, read, sizes};
use crate::skips::graph::{Edges, Graph, Past, factory, loss, rows};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Tensor};
use burn_pipeline::execute::{FusedActions, Tuning};
use burn_pipeline::pass::{Placing, WaitOptions};
use burn_pipeline::payload::Skips;
use burn_pipeline::plan::{Action, CheckError, Op, Plan, SkipEdge, Task};
use burn_pipeline::schedule::{Size, all};
use burn_pipeline::stage::{Accumulation, Batch, SplitBackward};
use burn_pipeline::train::{BuildError, Pipeline};
use pipeline_tests::reference::Reference;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::cell::RefCell;
use std::collections::BTreeMap;

const RATE: f64 = 0.1;
const STEPS: usize = 3;
/// More than the rounding of three steps, and less than one microbatch's gradient changes a weight.
const ROUNDING: f32 = 1e-5;

/// A change of a row. `usize`s choose cells.
#[derive(Clone, Copy, Debug)]
enum Damage {
    LeftOut(usize),
    Repeated(usize, usize),
    Moved(usize, usize),
    Swapped(usize, usize),
    Fused(usize),
    /// Inserts an operation on a whole stage after the chosen cell.
    PutIn(usize, Op),
}

/// The options of a run.
#[derive(Clone, Copy, Debug)]
struct Run {
    replicas: usize,
    sharded: bool,
    split: SplitBackward,
    recomputed: bool,
    accumulation: Accumulation,
    /// The samples beyond one per microbatch, which make microbatches and parts of replicas uneven.
    more: usize,
}

#[derive(Clone, Debug)]
struct Case {
    plan: Plan,
    edges: Edges,
    damage: Vec<Damage>,
    run: Run,
}

fn plans() -> impl Strategy<Value = (Plan, Edges)> {
    let schedules = all().into_iter().filter(|schedule| schedule.info().name != "ForwardOnly").count();
    let placing = || prop_oneof![Just(Placing::Implicit), Just(Placing::AtOnce), Just(Placing::Late)];
    let waits = (placing(), placing(), placing(), placing()).prop_map(|(sends, receives, unshards, reductions)| {
        WaitOptions { sends, receives, unshards, reductions, ..WaitOptions::default() }
    });
    let size = (0..schedules, 1..=3usize, 1..=2usize, 1..=4usize);
    let ends = proptest::collection::vec((0..6usize, 0..6usize), 0..3);
    (size, ends, any::<[bool; 4]>(), 1..=3usize, waits).prop_filter_map(
        "the schedule has such a size",
        |((schedule, ranks, chunks, microbatches), ends, [merged, gathered, reduced, lowered], most, waits)| {
            let schedule = all().into_iter().filter(|schedule| schedule.info().name != "ForwardOnly").nth(schedule)?;
            let mut plan = schedule.build(Size { ranks, chunks, microbatches }).ok()?;
            let stages = plan.stages();
            let inside = ends.into_iter().map(|(from, to)| (from % stages, to % stages));
            let edges: Edges = inside.filter(|(from, to)| *to > from + 1).collect();
            plan = plan.with_skips(edges.iter().map(|&(from, to)| SkipEdge { from, to }).collect()).ok()?;
            if merged {
                plan = plan.merge_backward();
            }
            if gathered {
                plan = plan.without_idle().with_unshard(most).ok()?;
            }
            if reduced {
                plan = plan.with_reduce_grad();
            }
            plan = if lowered { plan.without_idle().with_transfers().ok()? } else { plan };
            Some((plan.with_waits(&waits), edges))
        },
    )
}

fn damage() -> impl Strategy<Value = Vec<Damage>> {
    let cell = any::<usize>;
    let whole = [Op::Unshard, Op::Reshard, Op::ReduceGrad, Op::WaitUnshard, Op::WaitReduceGrad];
    let one = prop_oneof![
        cell().prop_map(Damage::LeftOut),
        (cell(), cell()).prop_map(|(from, to)| Damage::Repeated(from, to)),
        (cell(), cell()).prop_map(|(from, to)| Damage::Moved(from, to)),
        (cell(), cell()).prop_map(|(from, to)| Damage::Swapped(from, to)),
        cell().prop_map(Damage::Fused),
        (cell(), 0..whole.len()).prop_map(move |(at, op)| Damage::PutIn(at, whole[op])),
    ]
    .boxed();
    let some = |count| proptest::collection::vec(one.clone(), count);
    prop_oneof![1 => Just(Vec::new()), 5 => some(1..=2), 1 => some(3..=6)]
}

fn runs() -> impl Strategy<Value = Run> {
    let engine = prop_oneof![
        3 => Just((SplitBackward::Eager, false)),
        1 => Just((SplitBackward::Eager, true)),
        2 => Just((SplitBackward::Captured, false)),
        1 => Just((SplitBackward::Captured, true)),
    ];
    (1..=2usize, any::<bool>(), engine, any::<bool>(), 0..3usize).prop_map(
        |(replicas, sharded, (split, recomputed), ordered, more)| {
            let accumulation = if ordered { Accumulation::Ordered } else { Accumulation::AsTheyCome };
            Run { replicas, sharded: sharded && replicas > 1, split, recomputed, accumulation, more }
        },
    )
}

fn cases() -> impl Strategy<Value = Case> {
    (plans(), damage(), runs()).prop_map(|((plan, edges), damage, run)| Case { plan, edges, damage, run })
}

/// A row and a position in it. The two positions of one damage are usually close: far moves are hardly ever legal.
fn place(rows: &[Vec<Action>], chosen: usize) -> Option<(usize, usize)> {
    let row = chosen % rows.len();
    (!rows[row].is_empty()).then(|| (row, chosen / rows.len() % rows[row].len()))
}

fn near(row: &[Action], at: usize, chosen: usize) -> usize {
    let reach = if chosen.is_multiple_of(4) { row.len() } else { 1 + chosen % 4 / 3 };
    let down = at.saturating_sub(reach);
    down + chosen / 4 % ((at + reach).min(row.len() - 1) - down + 1)
}

fn damaged(plan: &Plan, damage: &[Damage]) -> Plan {
    let mut rows = plan.rows().to_vec();
    for &one in damage {
        let (Damage::LeftOut(at)
        | Damage::Repeated(at, _)
        | Damage::Moved(at, _)
        | Damage::Swapped(at, _)
        | Damage::Fused(at)
        | Damage::PutIn(at, _)) = one;
        let Some((rank, at)) = place(&rows, at) else { continue };
        let row = &mut rows[rank];
        match one {
            Damage::LeftOut(_) => drop(row.remove(at)),
            Damage::Repeated(_, to) => {
                let to = near(row, at, to) + 1;
                row.insert(to, row[at]);
            }
            Damage::Moved(_, to) => {
                let to = near(row, at, to);
                let moved = row.remove(at);
                row.insert(to, moved);
            }
            Damage::Swapped(_, to) => {
                let to = near(row, at, to);
                row.swap(at, to);
            }
            Damage::Fused(_) => fuse(row, at),
            Damage::PutIn(_, op) => {
                let stage = row[at].tasks().next().map(|task| task.stage());
                stage.into_iter().for_each(|stage| row.insert(at + 1, Task::whole_stage(stage, op).into()));
            }
        }
    }
    plan.with_rows(rows)
}

/// Fuses a cell with the next one, or splits a fused one.
fn fuse(row: &mut Vec<Action>, at: usize) {
    let of_microbatch = |action: Action| action.tasks().next().and_then(Task::of_microbatch);
    if let Action::Overlap(first, second) = row[at] {
        row.splice(at..=at, [second.into(), first.into()]);
    } else if let (Some(&Action::Single(next)), Some(first)) = (row.get(at + 1), of_microbatch(row[at])) {
        let Some(second) = next.of_microbatch() else { return };
        row.splice(at..=at + 1, [Action::Overlap(first, second)]);
    }
}

fn optimizer() -> ModuleOptimizer {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init()
}

/// The outcome of a plan. An error is a difference from the plain loop.
fn outcome(case: &Case) -> Result<&'static str, String> {
    let Case { edges, run, .. } = case;
    let plan = damaged(&case.plan, &case.damage);
    let changed = plan.without_idle().rows() != case.plan.without_idle().rows();
    let (stages, microbatches) = (plan.stages(), plan.total_microbatches() * run.replicas);
    let builder = Pipeline::builder().plan(plan).devices(vec![Device::flex()]).optimizer(optimizer);
    let (edges_of, recomputed) = (factory(edges), run.recomputed);
    let builder = builder.stages(move |at| edges_of(at).recomputed(recomputed)).split(run.split);
    let builder =
        builder.accumulation(run.accumulation).tuning(Tuning { fused: FusedActions::Interleave, ..Tuning::default() });
    let builder = builder.data_parallel(run.replicas).sharded(run.sharded).gathered_stages(2);
    let mut pipeline = match builder.build() {
        Ok(pipeline) => pipeline,
        Err(BuildError::Check(error)) if changed => {
            let unused = run.sharded && matches!(*error, CheckError::UnusedUnshard { .. });
            return Ok(if unused { "refused, as it would lose updates" } else { "refused by the check" });
        }
        Err(BuildError::Pass(_) | BuildError::Plan(_)) if changed => return Ok("refused by a pass"),
        Err(error) => return Err(format!("not built: {error}")),
    };
    let samples = microbatches + run.more;
    let (x, target, cut) = (rows(1, samples), rows(2, samples), sizes(samples, microbatches));
    let mut reference = Reference::resumed(Graph::new(stages, edges), optimizer());
    for step in 0..STEPS {
        let batch = Batch::new((x.clone(), Skips::<Past>(vec![]))).target(target.clone());
        let report = match pipeline.step(batch, RATE) {
            Ok(report) => report,
            // All backwards were removed.
            Err(burn_pipeline::train::PipelineError::ForwardOnly { .. }) => return Ok("refused as it trains nothing"),
            Err(error) => return Err(format!("step {step}: {error}")),
        };
        let expected = reference.step(&cut, RATE, None, |model, i| {
            let piece = |t: &Tensor<2>| t.clone().slice([range(&cut, i)]).autodiff();
            loss(model.forward(piece(&x)), piece(&target))
        });
        let got: Vec<Vec<f32>> = pipeline.weights().map_err(|e| e.to_string())?.iter().flatten().map(read).collect();
        let of_stages = |weights: &[Vec<f32>]| weights.concat();
        let (got, plain) = (of_stages(&got), of_stages(&reference.weights()));
        let distance = got.iter().zip(&plain).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // A value that skips a stage gets gradients from several stages, which autodiff adds in another order.
        let exact = run.accumulation == Accumulation::Ordered && edges.is_empty();
        if got.len() != plain.len() || distance > if exact { 0.0 } else { ROUNDING } || distance.is_nan() {
            return Err(format!("step {step}: weights are {distance:e} off"));
        }
        let distance = (report.loss - expected.loss).abs();
        if distance > if exact { 0.0 } else { f64::from(ROUNDING) } || distance.is_nan() {
            return Err(format!("step {step}: the loss is {distance:e} off"));
        }
    }
    Ok(if changed { "damaged, and as the plain loop" } else { "whole, and as the plain loop" })
}

#[test]
fn a_plan_that_passes_the_check_computes_what_the_plain_loop_does_whoever_wrote_it() {
    let counts: RefCell<BTreeMap<&str, usize>> = RefCell::default();
    let config = Config { cases: 1000, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let result = runner.run(&cases(), |case| {
        let outcome = outcome(&case).map_err(|difference| {
            let Case { plan, edges, damage, run } = &case;
            let csv = damaged(plan, damage).to_csv();
            proptest::test_runner::TestCaseError::fail(format!("{difference}\n{run:?}, edges {edges:?}\n{csv}"))
        })?;
        *counts.borrow_mut().entry(outcome).or_default() += 1;
        Ok(())
    });
    let counts = counts.into_inner();
    println!("{counts:#?}");
    result.unwrap_or_else(|failure| panic!("{failure}"));
    for (outcome, least) in
        [("refused by the check", 100), ("whole, and as the plain loop", 50), ("damaged, and as the plain loop", 50)]
    {
        assert!(counts.get(outcome).copied().unwrap_or_default() >= least, "{outcome}: {counts:?}");
    }
}
