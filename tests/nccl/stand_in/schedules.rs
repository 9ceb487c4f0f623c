//! Every schedule trains with computing on the mock's processors: losses and weights are the plain loop's on the same
//! device up to rounding, and a second run has the bits of the first one.
//!
//! Each rank is a process. It runs all of its schedules one after the other, each over a new link, because compiling
//! kernels takes most of the time, and each process compiles its own.

use super::replicas::replicas;
use super::start;
use super::tower::{ROUNDING, STEPS, Tower, apart, losses, pipeline, weights, weights_apart};
use burn_pipeline::schedule::{Chunks, Size, all};
use burn_pipeline::stage::SplitBackward;
use std::collections::BTreeMap;

/// As few as all schedules accept on four ranks.
const MICROBATCHES: usize = 4;
/// The engines of stages.
const ENGINES: [&str; 2] = ["eager", "captured"];
/// Schedules of the default suite on four ranks: with one route, with one that turns back, and with two.
const SOME: [&str; 3] = ["1F1B", "ZBVZeroBubble", "DualPipe"];

/// Runs the named part of a rank's process. Returns false if the name is not one of these.
pub(super) fn part(name: &str) -> bool {
    match name {
        "every schedule" => {
            train(&schedules(|_| true), &ENGINES);
            compiled_stages_are_captured_ones();
        }
        "some schedules, and replicas" => {
            train(&schedules(|name| SOME.contains(&name)), &ENGINES[1..]);
            [false, true].into_iter().for_each(replicas);
        }
        _ => return false,
    }
    true
}

/// The names of the library's schedules that train, with the chunks of each.
fn schedules(chosen: impl Fn(&str) -> bool) -> Vec<(&'static str, usize)> {
    let infos = all().into_iter().map(|schedule| schedule.info());
    let chosen = infos.filter(|info| info.name != "ForwardOnly" && chosen(info.name));
    let chunks = |chunks| if let Chunks::Exactly(chunks) = chunks { chunks } else { 2 };
    chosen.map(|info| (info.name, chunks(info.chunks))).collect()
}

/// What one run left: its losses and its weights, and why this rank's stages ran as they did.
#[derive(PartialEq, Debug)]
struct Trained {
    losses: Vec<f64>,
    weights: Vec<f32>,
    /// For each stage, whether it was captured, and the reason.
    engines: Vec<(bool, String)>,
}

fn run(case: &Tower, (schedule, chunks): (&str, usize), engine: &str) -> Trained {
    let ranks: usize = std::env::var("WORLD_SIZE").unwrap().parse().unwrap();
    let split = if engine == "eager" { SplitBackward::Eager } else { SplitBackward::Captured };
    let size = Size { ranks, chunks, microbatches: MICROBATCHES };
    let mut pipeline = pipeline(schedule, size, |builder| builder.split(split).compile(engine == "compiled"));
    let losses = losses(&mut pipeline, case, STEPS);
    let engines = pipeline.engines().unwrap();
    let engines = engines.into_iter().map(|(_, report)| (report.captured, report.reason)).collect();
    Trained { losses, weights: weights(&mut pipeline), engines }
}

/// Trains with each schedule and engine, and prints a cell of the table for each.
fn train(schedules: &[(&str, usize)], engines: &[&str]) {
    let case = Tower::new(MICROBATCHES);
    let sizes = vec![1; MICROBATCHES];
    let (expected, plain) = case.plain(&sizes, &[(0..MICROBATCHES).collect()]);
    assert!(expected[1] < expected[0], "the loss falls: {expected:?}");
    let plain = plain.weights().concat();
    for &engine in engines {
        for &(schedule, chunks) in schedules {
            let place = format!("{schedule}, {engine}");
            let got = run(&case, (schedule, chunks), engine);
            assert!(got.engines.iter().all(|(captured, _)| *captured == (engine != "eager")), "{place}");
            let (of_losses, of_weights) = (apart(&got.losses, &expected), weights_apart(&got.weights, &plain));
            println!("cell|{schedule}|{chunks}|{engine}|{}, {}", short(of_losses), short(of_weights));
            assert!(of_losses < ROUNDING, "{place}: {:?}, the plain loop {expected:?}", got.losses);
            assert!(of_weights < ROUNDING, "{place}: weights are {of_weights:e} apart");
            assert!(run(&case, (schedule, chunks), engine) == got, "{place}: other bits in the second run");
        }
    }
}

/// A difference as text: 0 if bits are equal.
fn short(difference: f64) -> String {
    if difference == 0.0 { "0".to_owned() } else { format!("{difference:.1e}") }
}

/// Only programs for Flex are compiled. Elsewhere the same stages run as without [`Builder::compile`], and say so.
///
/// [`Builder::compile`]: burn_pipeline::train::Builder::compile
fn compiled_stages_are_captured_ones() {
    let case = Tower::new(MICROBATCHES);
    let [compiled, captured] = ["compiled", "captured"].map(|engine| run(&case, ("ZBH1", 1), engine));
    assert_eq!(compiled, captured);
    assert!(captured.engines.iter().all(|(_, reason)| !reason.contains("compiled")), "{:?}", captured.engines);
}

#[test]
fn four_gpus_that_compute_train_evaluate_and_resume_as_the_plain_loop_does() {
    start(4, "some schedules, and replicas", &[("DEVICE", "cuda")]).all_pass();
}

/// The cells that rank 0 has printed, by schedule, chunks and engine.
fn cells(ranks: usize) -> BTreeMap<[String; 3], String> {
    let ended = start(ranks, "every schedule", &[("DEVICE", "cuda")]).end();
    let failed: Vec<&String> = ended.iter().filter(|(passed, _)| !passed).map(|(_, text)| text).collect();
    assert!(failed.is_empty(), "{ranks} ranks: {failed:?}");
    let cell = |line: &str| {
        let parts = line.strip_prefix("cell|")?.split('|').map(str::to_owned).collect::<Vec<_>>();
        let [schedule, chunks, engine, cell]: [String; 4] = parts.try_into().ok()?;
        Some(([schedule, chunks, engine], cell))
    };
    ended[0].1.lines().filter_map(cell).collect()
}

#[test]
#[ignore = "takes minutes, and prints a table"]
fn every_schedule_on_two_and_four_gpus_that_compute() {
    let tables = [2, 4].map(cells);
    let heads: Vec<String> = [2, 4].iter().flat_map(|n| ENGINES.map(|engine| format!("{n} GPUs, {engine}"))).collect();
    println!("| schedule | chunks | {} |", heads.join(" | "));
    println!("|---|---|{}", "---|".repeat(heads.len()));
    for (schedule, chunks) in schedules(|_| true) {
        let of = |table: &BTreeMap<[String; 3], String>, engine: &str| {
            table[&[schedule.to_owned(), chunks.to_string(), engine.to_owned()]].clone()
        };
        let row: Vec<String> = tables.iter().flat_map(|table| ENGINES.map(|engine| of(table, engine))).collect();
        println!("| {schedule} | {chunks} | {} |", row.join(" | "));
    }
}
