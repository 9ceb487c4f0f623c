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
mod masks;
mod plain;
mod table;

use burn_pipeline::plan::PlacementKind;
use burn_pipeline::schedule::{all, by_name};
use cases::{Case, Stacked, Translation};
use cell::{Found, Mode, cell};
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
        ("branch on values", Mode::Captured) => Err("the stage cannot be captured"),
        ("frozen, later thawed", Mode::Sharded) => Err("freeze and unfreeze parameters without `sharded`"),
        _ => Ok(()),
    }
}

/// Runs a module's cells and adds the wrong ones to `failures`.
fn row<C: Case>(case: &C, failures: &mut Vec<String>) -> Row {
    let mut row = Row::new(case.name());
    for schedule in schedules() {
        for mode in Mode::ALL {
            let (found, expected) = (cell(case, schedule, mode), expected(case.name(), schedule, mode));
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
