//! Random numbers, running statistics and frozen weights are restored as well.

use super::RATE;
use burn_pipeline::train::{Checkpoints, Pipeline};
use pipeline_tests::noisy::{batch, builder};
use tempfile::tempdir;

fn losses(pipeline: &mut Pipeline, steps: std::ops::Range<usize>) -> Vec<f64> {
    steps.map(|step| pipeline.step(batch(step), RATE).unwrap().loss).collect()
}

fn held_out(pipeline: &mut Pipeline) -> f64 {
    pipeline.eval(batch(99)).unwrap().loss.unwrap()
}

#[test]
fn a_seeded_job_that_is_taken_up_again_draws_what_it_would_have_drawn() {
    let folder = tempdir().unwrap();
    let mut whole = builder("1F1B").seed(7).build().unwrap();
    let (expected, evaluated) = (losses(&mut whole, 0..6), held_out(&mut whole));
    let checkpoints = Checkpoints::new(folder.path());
    let mut first = builder("1F1B").seed(7).build().unwrap();
    assert_eq!(losses(&mut first, 0..3), expected[..3]);
    first.save(&checkpoints, &()).unwrap();
    // The checkpoint holds the seed, and the random numbers do not depend on the schedule.
    for schedule in ["1F1B", "GPipe"] {
        let mut second = builder(schedule).build().unwrap();
        second.load(&checkpoints.latest().unwrap()).unwrap();
        assert_eq!(losses(&mut second, 3..6), expected[3..], "{schedule}");
        assert_eq!(held_out(&mut second), evaluated, "running statistics, {schedule}");
    }
    let mut other = builder("1F1B").seed(8).build().unwrap();
    assert_ne!(losses(&mut other, 0..3), expected[..3]);
}

#[test]
fn frozen_weights_and_running_statistics_are_among_what_is_saved() {
    let folder = tempdir().unwrap();
    let mut pipeline = builder("GPipe").seed(1).build().unwrap();
    losses(&mut pipeline, 0..2);
    let checkpoints = Checkpoints::new(folder.path());
    pipeline.save(&checkpoints, &()).unwrap();
    let checkpoint = checkpoints.latest().unwrap();
    let entry = |name: &str| checkpoint.parameters().iter().find(|entry| entry.names == [name]).unwrap();
    for name in ["1.frozen.weight", "1.norm.running_mean", "0.norm.running_var"] {
        assert_eq!(entry(name).optimizer_fields().count(), 0, "{name}");
    }
    let kept: Vec<&str> = entry("0.linear.weight").optimizer_fields().collect();
    assert!(kept.iter().any(|field| field.contains("moment")), "{kept:?}");
}
