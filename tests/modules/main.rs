//! Modules of every kind under every schedule family: each cell of the table equals the plain loop (an independent one,
//! with Burn alone), or is refused with the documented error.
//!
//! ```sh
//! cargo test --test modules -- --nocapture                    # prints the table of some families
//! ALL_FAMILIES=1 cargo test --test modules -- --nocapture     # of all of them
//! ```
//!
//! A cell compares the losses of three steps, every parameter and buffer afterwards (as a checkpoint would save them), and
//! the loss of a batch that was not trained on. With `Accumulation::Ordered` all must be equal to the last bit. The table
//! of the guide (`numbers.md`) must be the one that is printed.

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

/// Families of the ordinary test: whole backwards and split ones, with one copy of each stage and with two.
const SOME: [&str; 5] = ["1F1B", "ZBH1", "ZBVZeroBubble", "Chimera", "DualPipe"];

/// The families to run.
fn families() -> Vec<&'static str> {
    match std::env::var_os("ALL_FAMILIES") {
        None => SOME.to_vec(),
        Some(_) => all().iter().map(|schedule| schedule.family().name).filter(|name| *name != "ForwardOnly").collect(),
    }
}

/// What a cell must give: equality, or an error with these words.
fn expected(name: &str, family: &str, mode: Mode) -> Result<(), &'static str> {
    let copies = by_name(family).unwrap().family().placement == PlacementKind::Bidirectional || mode.replicas() > 1;
    let running = name.contains("BatchNorm") || name.contains("RunningState");
    match (name, mode) {
        _ if running && mode == Mode::Captured => Err("its forward changes a buffer (running statistics)"),
        _ if running && copies => Err("choose a schedule with one copy of each stage"),
        ("branch on values", Mode::Captured) => Err("the stage cannot be captured"),
        ("frozen, later thawed", Mode::Sharded) => Err("freeze and thaw parameters without `sharded`"),
        _ => Ok(()),
    }
}

/// Runs a module's cells, and says which are not as they must be.
fn row<C: Case>(case: &C, failures: &mut Vec<String>) -> Row {
    let mut row = Row::new(case.name());
    for family in families() {
        for mode in Mode::ALL {
            let (found, expected) = (cell(case, family, mode), expected(case.name(), family, mode));
            let verdict = Verdict::of(&found);
            let holds = match (&found, expected) {
                (Found::Distance(distance), Ok(())) => *distance == 0.0,
                (Found::Refused(error), Err(words)) => error.contains(words),
                _ => false,
            };
            if !holds {
                failures.push(format!("{}, {family}, {}: {found:?}, expected {expected:?}", case.name(), mode.title()));
            }
            row.add(family, mode, verdict);
        }
    }
    println!("{}", row.by_family());
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
    assert!(guide.contains(&table), "the guide's `numbers.md` has another table");
}
