//! Modules of every kind under every schedule. Each cell of the table equals the plain loop, which is written with
//! Burn alone, or fails with the documented error.
//!
//! ```sh
//! cargo test --test modules -- --nocapture                    # prints the table of some schedules
//! ALL_SCHEDULES=1 cargo test --test modules -- --nocapture    # of all schedules
//! ```
//!
//! A cell compares the losses of three steps, every parameter and buffer afterwards (as a checkpoint would save
//! them), and the loss of an evaluated batch. With `Accumulation::Ordered` all must be equal bit for bit. The
//! printed table must be the one in the guide (`numbers.md`).

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking and print what they covered")]

mod cases;
mod cell;
mod layers;
mod map;
mod masks;
mod numbers;
mod plain;
mod table;

use burn_pipeline::plan::PlacementKind;
use burn_pipeline::schedule::{all, by_name};
use cases::{Case, Stacked, Translation};
use cell::{Found, Mode, Plains, compiled};
use numbers::{CELLS, Numbers, Typed};
use table::{Row, Verdict};

/// The schedules of the ordinary test: whole and split backwards, with one and with two copies of each stage.
const SOME: [&str; 5] = ["1F1B", "ZBH1", "ZBVZeroBubble", "Chimera", "DualPipe"];

/// The schedules to run.
fn schedules() -> Vec<&'static str> {
    match std::env::var_os("ALL_SCHEDULES") {
        None => SOME.to_vec(),
        Some(_) => all().iter().map(|schedule| schedule.info().name).filter(|name| *name != "ForwardOnly").collect(),
    }
}

/// The expected result of a cell: equality, or an error with these words.
fn expected(name: &str, schedule: &str, mode: Mode) -> Result<(), &'static str> {
    let copies = by_name(schedule).unwrap().info().placement == PlacementKind::Bidirectional || mode.replicas() > 1;
    let running = name.contains("BatchNorm") || name.contains("RunningState");
    match (name, mode) {
        _ if running && mode == Mode::Captured => Err("its forward changes a buffer (running statistics)"),
        _ if running && copies => Err("choose a schedule with one copy of each stage"),
        ("branch on values", Mode::Captured | Mode::TensorParallel) => Err("the stage cannot be captured"),
        ("frozen, later thawed", Mode::Sharded) => Err("freeze and unfreeze parameters without `sharded`"),
        _ => Ok(()),
    }
}

/// Runs a module's cells and adds the wrong ones to `failures`.
fn row<C: Case>(case: &C, failures: &mut Vec<String>) -> Row {
    let (mut row, mut plains) = (Row::new(case.name()), Plains::default());
    for schedule in schedules() {
        for mode in Mode::ALL {
            let (found, expected) = (plains.cell(case, schedule, mode), expected(case.name(), schedule, mode));
            let verdict = Verdict::of(&found);
            let holds = match (&found, expected) {
                (Found::Distance(distance), Ok(())) => *distance == 0.0,
                (Found::Refused(error), Err(words)) => error.contains(words),
                _ => false,
            };
            if !holds {
                failures.push(format!(
                    "{}, {schedule}, {}: {found:?}, expected {expected:?}",
                    case.name(),
                    mode.title()
                ));
            }
            row.add(schedule, mode, verdict);
        }
    }
    println!("{}", row.by_schedule());
    row
}

/// Runs a module's cells with every other element type: each must be as in f32. Adds the wrong ones to `failures`.
fn typed<C: Case>(case: &C, failures: &mut Vec<String>) -> Vec<String> {
    let mut words = vec![case.name().to_owned()];
    for numbers in Numbers::ALL {
        let case = Typed { case: case.clone(), numbers };
        let (mut plains, mut refused) = (Plains::default(), false);
        for (schedule, mode) in CELLS {
            // A checkpoint holds no plain fields, and does not say what is frozen.
            if mode == Mode::Resumed && ["field changed in `after_step`", "frozen, later thawed"].contains(&case.name())
            {
                continue;
            }
            let found = plains.cell(&case, schedule, mode);
            let expected = match (numbers, mode) {
                (Numbers::Own(_), Mode::Resumed) => Err("Burn's optimizers take their state back as F32"),
                _ => expected(case.name(), schedule, mode),
            };
            match (&found, expected) {
                (Found::Distance(0.0), Ok(())) => {}
                (Found::Refused(error), Err(words)) if error.contains(words) => refused |= mode != Mode::Resumed,
                _ => {
                    let place = format!("{}, {}, {schedule}, {}", case.name(), numbers.title(), mode.title());
                    failures.push(format!("{place}: {found:?}, expected {expected:?}"));
                }
            }
        }
        words.push(if refused { "as f32" } else { "equal" }.to_owned());
    }
    words
}

#[test]
fn with_other_element_types_every_module_is_as_in_f32() {
    let mut failures = Vec::new();
    let mut rows: Vec<Vec<String>> = Stacked::all().iter().map(|case| typed(case, &mut failures)).collect();
    rows.push(typed(&Translation, &mut failures));
    let titles = std::iter::once("module").chain(Numbers::ALL.map(Numbers::title)).map(str::to_owned);
    let table = table::lines(titles.collect(), rows);
    println!("{table}");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let guide = include_str!("../../burn-pipeline/src/_guide/numbers.md");
    assert!(guide.contains(&table), "the table of element types in the guide's `numbers.md` differs");
}

/// Adds the schedules under which a module's compiled stages differ from one rank's to `failures`.
fn compiled_row<C: Case>(case: &C, failures: &mut Vec<String>) {
    for schedule in schedules() {
        match (compiled(case, schedule), expected(case.name(), schedule, Mode::Compiled)) {
            (Found::Distance(0.0), Ok(())) => {}
            (Found::Refused(error), Err(words)) if error.contains(words) => {}
            (found, expected) => {
                failures.push(format!("{}, {schedule}: {found:?}, expected {expected:?}", case.name()));
            }
        }
    }
}

#[test]
fn every_compiled_module_equals_one_compiled_rank_under_every_schedule() {
    let mut failures = Vec::new();
    Stacked::all().iter().for_each(|case| compiled_row(case, &mut failures));
    compiled_row(&Translation, &mut failures);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_module_equals_the_plain_loop_or_is_refused() {
    let mut failures = Vec::new();
    let mut rows: Vec<Row> = Stacked::all().iter().map(|case| row(case, &mut failures)).collect();
    rows.push(row(&Translation, &mut failures));
    let table = table::markdown(&rows);
    println!("{table}");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let guide = include_str!("../../burn-pipeline/src/_guide/numbers.md");
    assert!(guide.contains(&table), "the table in the guide's `numbers.md` differs");
}
