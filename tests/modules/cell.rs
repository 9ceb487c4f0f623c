//! One cell of the table: one module under one schedule, in one mode.

use crate::cases::Case;
use crate::plain::{Outcome, STEPS, batch, held_out, plain};
use burn_pipeline::plan::PlacementKind;
use burn_pipeline::schedule::{Chunks, Schedule, Size, by_name};
use burn_pipeline::stage::{Accumulation, SplitBackward};
use burn_pipeline::train::{Builder, CheckpointError, Checkpoints, Pipeline};
use pipeline_tests::device::device;
use std::collections::BTreeMap;
use tempfile::tempdir;

/// The microbatches of each replica.
const MICROBATCHES: usize = 4;
const SEED: u64 = 5;

/// A way to run a schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Plain,
    Eager,
    Captured,
    Compiled,
    Recomputed,
    DataParallel,
    Sharded,
    TensorParallel,
    /// The last step runs on other ranks, from a checkpoint.
    Resumed,
}

impl Mode {
    pub(crate) const ALL: [Self; 7] = [
        Self::Plain,
        Self::Eager,
        Self::Captured,
        Self::Recomputed,
        Self::DataParallel,
        Self::Sharded,
        Self::TensorParallel,
    ];

    /// Its column in the table.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Plain => "as it comes",
            Self::Eager => "eager",
            Self::Captured => "captured",
            Self::Compiled => "compiled",
            Self::Recomputed => "recomputed",
            Self::DataParallel => "data-parallel",
            Self::Sharded => "sharded",
            Self::TensorParallel => "tensor-parallel",
            Self::Resumed => "resumed",
        }
    }

    pub(crate) fn replicas(self) -> usize {
        if matches!(self, Self::DataParallel | Self::Sharded) { 2 } else { 1 }
    }

    /// The members of each stage's tensor-parallel group.
    fn members(self) -> usize {
        if self == Self::TensorParallel { 2 } else { 1 }
    }
}

/// The result of a cell.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    /// The largest difference to the plain loop.
    Distance(f64),
    /// The error.
    Refused(String),
}

/// The size at which a schedule runs.
pub(crate) fn size(schedule: &dyn Schedule) -> Size {
    let chunks = match schedule.info().chunks {
        Chunks::Exactly(chunks) => chunks,
        Chunks::Any => 2,
    };
    Size { ranks: 2, chunks, microbatches: MICROBATCHES }
}

/// The number of stages that a schedule cuts a model into.
fn stages(schedule: &dyn Schedule) -> usize {
    let Size { ranks, chunks, .. } = size(schedule);
    if schedule.info().placement == PlacementKind::Bidirectional { ranks } else { ranks * chunks }
}

/// The pipeline's results, or its error.
fn run<C: Case>(case: &C, schedule: &str, size: Size, mode: Mode) -> Result<Outcome, String> {
    let (made, optimizer) = (case.clone(), case.clone());
    let builder = Pipeline::builder().schedule(schedule, size).devices(vec![device()]);
    let builder = builder.accumulation(Accumulation::Ordered).seed(SEED).data_parallel(mode.replicas());
    let builder = builder.tensor_parallel(mode.members()).split(match mode {
        Mode::Eager => SplitBackward::Eager,
        Mode::Captured => SplitBackward::Captured,
        _ => SplitBackward::Auto,
    });
    let builder = builder.stages(move |at| made.stage(at).recomputed(mode == Mode::Recomputed));
    let builder = builder.sharded(mode == Mode::Sharded).compile(mode == Mode::Compiled);
    let builder = builder.optimizer(move || optimizer.optimizer());
    let builder = match case.half() {
        Some(half) => builder.precision(half.precision(case.keeps())),
        None => builder,
    };
    let other = builder.clone().schedule("LoopedBFS", elsewhere(case, schedule));
    let mut pipeline = builder.build().map_err(|error| error.to_string())?;
    let microbatches = size.microbatches * mode.replicas();
    let mut outcome = Outcome::default();
    for step in 0..STEPS {
        case.before(step);
        if mode == Mode::Resumed && step + 1 == STEPS {
            pipeline = resumed(&mut pipeline, other.clone()).map_err(|error| error.to_string())?;
        }
        let report = pipeline.step(batch::<C>(step, microbatches), case.learning_rate(step));
        outcome.losses.push(report.map_err(|error| error.to_string())?.loss);
    }
    let evaluated = pipeline.eval(held_out::<C>(microbatches)).map_err(|error| error.to_string())?;
    outcome.evaluated = evaluated.loss.ok_or("no loss")?;
    // A checkpoint holds the same values.
    let weights = pipeline.named_weights().map_err(|error| error.to_string())?;
    let read =
        |weight: &burn_pipeline::stage::NamedWeight| weight.value.to_data().map(|data| data.iter::<f64>().collect());
    outcome.values = weights.iter().flatten().map(read).collect::<Result<_, String>>()?;
    Ok(outcome)
}

/// One rank with the whole model, or with the same stages if these decide what is drawn.
fn elsewhere<C: Case>(case: &C, schedule: &str) -> Size {
    let chunks = if case.masks().is_empty() { 1 } else { by_name(schedule).map_or(1, |s| stages(s.as_ref())) };
    Size { ranks: 1, chunks, microbatches: MICROBATCHES }
}

/// Saves a pipeline, and loads what it saved into another.
fn resumed(pipeline: &mut Pipeline, other: Builder) -> Result<Pipeline, CheckpointError> {
    let folder = tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path());
    pipeline.save(&checkpoints, &())?;
    let mut other = other.build().unwrap();
    other.load(&checkpoints.latest()?)?;
    Ok(other)
}

/// Runs the plain loop with the masks that a pipeline of as many stages draws.
pub(crate) fn plain_for<C: Case>(case: &C, schedule: &dyn Schedule, mode: Mode) -> Outcome {
    let microbatches = MICROBATCHES * mode.replicas();
    case.masks().iter().for_each(|masks| masks.write());
    if !case.masks().is_empty() {
        run(case, "GPipe", Size::new(stages(schedule), microbatches), Mode::Eager).unwrap();
    }
    case.masks().iter().for_each(|masks| masks.read_back());
    let outcome = plain(case, microbatches, mode.members());
    case.masks().iter().for_each(|masks| masks.draw());
    outcome
}

/// Runs a schedule in this mode.
pub(crate) fn cell<C: Case>(case: &C, schedule: &str, mode: Mode) -> Found {
    let schedule = by_name(schedule).unwrap();
    let expected = plain_for(case, schedule.as_ref(), mode);
    compared(case, schedule.as_ref(), mode, &expected)
}

/// The results of a module's plain loop, by number of replicas and of members.
#[derive(Default)]
pub(crate) struct Plains(BTreeMap<(usize, usize), Outcome>);

impl Plains {
    /// Like [`cell`], and runs the plain loop once, unless masks depend on the schedule.
    pub(crate) fn cell<C: Case>(&mut self, case: &C, schedule: &str, mode: Mode) -> Found {
        if !case.masks().is_empty() {
            return cell(case, schedule, mode);
        }
        let schedule = by_name(schedule).unwrap();
        let plain = || plain_for(case, schedule.as_ref(), mode);
        let expected = self.0.entry((mode.replicas(), mode.members())).or_insert_with(plain);
        compared(case, schedule.as_ref(), mode, expected)
    }
}

/// Runs a schedule with compiled stages, and compares it with one rank that has compiled stages.
pub(crate) fn compiled<C: Case>(case: &C, schedule: &str) -> Found {
    let schedule = by_name(schedule).unwrap();
    let alone = run(case, "LoopedBFS", elsewhere(case, schedule.info().name), Mode::Compiled).unwrap();
    compared(case, schedule.as_ref(), Mode::Compiled, &alone)
}

fn compared<C: Case>(case: &C, schedule: &dyn Schedule, mode: Mode, expected: &Outcome) -> Found {
    match run(case, schedule.info().name, size(schedule), mode) {
        Ok(outcome) => Found::Distance(outcome.distance(expected)),
        Err(error) => Found::Refused(error),
    }
}
