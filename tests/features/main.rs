//! Every pair of features, and random sets of more, train as the plain loop on one device does, or are refused with a
//! documented error.
//!
//! Losses of three steps, all weights and, if they are computed, gradients of the batch agree up to rounding, since
//! groups, shards and compiled stages add sums in another order. Each feature's own tests check bitwise equality where
//! the order is the same.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking and print what they covered")]

mod model;
mod run;

use burn_pipeline::stage::SplitBackward;
use pipeline_tests::random::Random;
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

/// The schedules that only random sets contain.
const SCHEDULES: [Feature; 11] = [
    ("GPipe", |run| run.schedule = ("GPipe", 1)),
    ("LoopedBFS", |run| run.schedule = ("LoopedBFS", 2)),
    ("InterleavedZeroBubble", |run| run.schedule = ("InterleavedZeroBubble", 2)),
    ("ZBH2", |run| run.schedule = ("ZBH2", 1)),
    ("ZBAuto", |run| run.schedule = ("ZBAuto", 1)),
    ("VHalf", |run| run.schedule = ("VHalf", 2)),
    ("VMin", |run| run.schedule = ("VMin", 2)),
    ("1F1B-V", |run| run.schedule = ("1F1B-V", 2)),
    ("DualPipeV", |run| run.schedule = ("DualPipeV", 2)),
    ("GIS", |run| run.schedule = ("GIS", 2)),
    ("GISH", |run| run.schedule = ("GISH", 2)),
];

/// The largest allowed difference of a loss or a weight.
const TOLERANCE: f64 = 1e-5;

/// The same with a `precision`: what f32 adds in another order or with another factor, bf16 rounds to 2^-8 of a number.
const HALF: f64 = 1.0 / 32.0;

impl Run {
    fn tolerance(&self) -> f64 {
        if self.half { HALF } else { TOLERANCE }
    }
}

/// All features, unless the order in which they change the run matters.
fn all(features: &[Feature]) -> Option<Run> {
    let (mut run, mut other) = (Run::default(), Run::default());
    features.iter().for_each(|feature| feature.1(&mut run));
    features.iter().rev().for_each(|feature| feature.1(&mut other));
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

/// The results of all runs, in their order.
fn looks(runs: &[Run]) -> Vec<Result<f64, String>> {
    let (next, found) = (Mutex::new(0..runs.len()), Mutex::new(vec![Err("not run".to_owned()); runs.len()]));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // The lock is free while a run trains.
                while let Some(place) = { next.lock().unwrap().next() } {
                    let result = look(&runs[place]);
                    found.lock().unwrap()[place] = result;
                }
            });
        }
    });
    found.into_inner().unwrap()
}

#[test]
fn every_pair_of_features_equals_the_plain_loop_or_is_refused_by_its_documented_sentence() {
    let (mut pairs, mut runs) = (Vec::new(), Vec::new());
    for (place, first) in FEATURES.iter().enumerate() {
        for second in &FEATURES[place..] {
            if let Some(run) = all(&[*first, *second]) {
                pairs.push((first.0, second.0));
                runs.push(run);
            }
        }
    }
    let (mut documented, mut equal, mut wrong) = (documented(), 0, Vec::new());
    for (((first, second), run), result) in pairs.iter().zip(&runs).zip(looks(&runs)) {
        println!("{first} + {second}: {result:?}");
        let refusal = documented.remove(&(first.to_string(), second.to_string()));
        match (&result, &refusal) {
            (Ok(distance), None) if *distance <= run.tolerance() => equal += 1,
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

/// A set of three to seven features, of which no two are refused together.
fn drawn(random: &mut Random, refused: &BTreeMap<(String, String), String>) -> Vec<Feature> {
    let (mut set, features) = (Vec::<Feature>::new(), [&FEATURES[..], &SCHEDULES[..]].concat());
    let size = 3 + random.below(5) as usize;
    while set.len() < size {
        let feature = features[random.below(features.len() as u64) as usize];
        let known =
            |other: &Feature| other.0 == feature.0 || refused.contains_key(&(other.0.to_owned(), feature.0.to_owned()));
        if !set.iter().any(known) && all(&[&set[..], &[feature]].concat()).is_some() {
            set.push(feature);
        }
    }
    set
}

/// The features without which the run would not fail.
fn shrunk(mut set: Vec<Feature>) -> Vec<Feature> {
    let fails =
        |set: &[Feature]| all(set).is_some_and(|run| !look(&run).is_ok_and(|distance| distance <= run.tolerance()));
    for place in (0..set.len()).rev() {
        let fewer = [&set[..place], &set[place + 1..]].concat();
        if fails(&fewer) {
            set = fewer;
        }
    }
    set
}

/// `SETS` sets, drawn with `SEED`.
#[test]
fn random_sets_of_features_equal_the_plain_loop_unless_two_of_them_are_refused() {
    let sets = std::env::var("SETS").map_or(40, |sets| sets.parse().unwrap());
    let (mut random, refused) = (Random::of_now(), documented());
    let sets: Vec<_> = (0..sets).map(|_| drawn(&mut random, &refused)).collect();
    let runs: Vec<_> = sets.iter().map(|set| all(set).unwrap()).collect();
    let mut wrong = Vec::new();
    for ((set, run), result) in sets.into_iter().zip(&runs).zip(looks(&runs)) {
        if !result.as_ref().is_ok_and(|distance| *distance <= run.tolerance()) {
            let names: Vec<_> = shrunk(set).into_iter().map(|feature| feature.0).collect();
            wrong.push(format!("{}: {result:?}", names.join(" + ")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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
