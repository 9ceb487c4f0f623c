//! Every pair of features trains as the plain loop on one device does, or is refused with its documented error.
//!
//! Losses of three steps, all weights and, if they are computed, gradients of the batch agree up to rounding, since
//! groups, shards and compiled stages add sums in another order. Each feature's own tests check bitwise equality where
//! the order is the same.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking and print what they covered")]

mod model;
mod run;

use burn_pipeline::stage::SplitBackward;
use run::Run;
use std::collections::BTreeMap;
use std::sync::Mutex;
use tempfile::tempdir;

/// A feature by name, and what it changes in a run.
type Feature = (&'static str, fn(&mut Run));

const FEATURES: [Feature; 33] = [
    ("a schedule that splits backwards", |run| run.schedule = ("ZBH1", 1)),
    ("several stages a rank", |run| run.schedule = ("Interleaved1F1B", 2)),
    ("a V schedule", |run| run.schedule = ("ZBVZeroBubble", 2)),
    ("a bidirectional schedule", |run| run.schedule = ("DualPipe", 1)),
    ("precision", |run| run.half = true),
    ("data_parallel", |run| run.replicas = 2),
    ("sharded", |run| (run.replicas, run.sharded) = (2, true)),
    ("tensor_parallel", |run| run.members = 2),
    ("vocabulary", |run| run.vocabulary = true),
    ("share", |run| run.tied = true),
    ("skip", |run| run.skip = true),
    ("recomputed", |run| run.recompute = true),
    ("frozen", |run| run.frozen = true),
    ("split(Eager)", |run| run.split = SplitBackward::Eager),
    ("split(Captured)", |run| run.split = SplitBackward::Captured),
    ("compile", |run| run.compile = true),
    ("accumulation(Ordered)", |run| run.ordered = true),
    ("merge_weights", |run| run.merge = true),
    ("record_every", |run| (run.split, run.record_every) = (SplitBackward::Captured, 5)),
    ("seed", |run| run.seed = true),
    ("validate", |run| run.validate = true),
    ("input_gradients", |run| run.input_gradients = true),
    ("clip_norm", |run| run.clip = true),
    ("AdamW", |run| run.adam = true),
    ("rates of groups", |run| run.rates = true),
    ("reduction(Weighted)", |run| run.weighted = true),
    ("accumulate, eval, take_gradients", |run| (run.accumulate, run.evaluate, run.take) = (true, true, true)),
    ("save, load", |run| run.resume = true),
    ("replace_module", |run| run.replace = true),
    ("step_to", |run| run.step_to = true),
    ("measure_layers", |run| run.measure = true),
    ("AutoPipeline", |run| run.auto = true),
    ("processes", |run| run.processes = true),
];

/// The largest allowed difference of a loss or a weight. AdamW divides by small numbers, so that a rounding of a
/// gradient, which depends on the processor, moves a weight by up to 5e-6.
const TOLERANCE: f64 = 1e-5;

/// The same with a `precision`: what f32 adds in another order or with another factor, bf16 rounds to 2^-8 of a number.
const HALF: f64 = 1.0 / 32.0;

impl Run {
    fn tolerance(&self) -> f64 {
        if self.half { HALF } else { TOLERANCE }
    }
}

/// Both features, unless the second undoes the first one's change.
fn both(first: Feature, second: Feature) -> Option<Run> {
    let (mut run, mut other) = (Run::default(), Run::default());
    first.1(&mut run);
    second.1(&mut run);
    second.1(&mut other);
    first.1(&mut other);
    (run == other).then_some(run)
}

/// Returns the distance of losses and weights from the plain loop's, or the refusal.
fn look(run: &Run) -> Result<f64, String> {
    let folder = tempdir().unwrap();
    Ok(run.trained(folder.path())?.distance(&run.plain()))
}

/// The pairs that the guide lists as refused, in both orders, each with a fragment of its error.
fn documented() -> BTreeMap<(String, String), String> {
    let guide = include_str!("../../burn-pipeline/src/_guide/numbers.md");
    let table =
        guide.split_once("# Features, two by two").unwrap().1.split_once("`cargo test --test features").unwrap().0;
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let pair = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let name = |cell: &str| cell.replace('`', "");
        ((name(cells[0]), name(cells[1])), cells[2].to_owned())
    };
    rows.map(pair).flat_map(|((a, b), said)| [((b.clone(), a.clone()), said.clone()), ((a, b), said)]).collect()
}

#[test]
fn every_pair_of_features_equals_the_plain_loop_or_is_refused_by_its_documented_sentence() {
    let mut pairs = Vec::new();
    for (place, first) in FEATURES.iter().enumerate() {
        pairs.extend(FEATURES[place..].iter().filter_map(|second| Some((first.0, second.0, both(*first, *second)?))));
    }
    let (todo, found) = (Mutex::new(pairs.iter()), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // The lock is free while a pair trains.
                while let Some((first, second, run)) = { todo.lock().unwrap().next() } {
                    let result = look(run);
                    found.lock().unwrap().insert((*first, *second), result);
                }
            });
        }
    });
    let tolerances: BTreeMap<_, _> =
        pairs.iter().map(|(first, second, run)| ((*first, *second), run.tolerance())).collect();
    let (mut documented, mut equal, mut wrong) = (documented(), 0, Vec::new());
    for ((first, second), result) in &*found.lock().unwrap() {
        println!("{first} + {second}: {result:?}");
        let refusal = documented.remove(&(first.to_string(), second.to_string()));
        match (result, &refusal) {
            (Ok(distance), None) if *distance <= tolerances[&(*first, *second)] => equal += 1,
            (Err(error), Some(said)) if error.contains(said) => {
                documented.remove(&(second.to_string(), first.to_string()));
            }
            _ => wrong.push(format!("{first} + {second}: {result:?}, documented: {refusal:?}")),
        }
    }
    println!("{} pairs: {equal} equal the plain loop", pairs.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(documented.is_empty(), "documented pairs that are not refused, or do not exist: {documented:?}");
}

#[test]
fn a_lost_update_would_show() {
    for (name, choose) in FEATURES {
        let mut run = Run::default();
        choose(&mut run);
        let moved = run.plain().moved();
        assert!(moved > 1000.0 * TOLERANCE, "{name}: losses change by {moved} alone");
    }
}
