//! A resumed job, on any cut, has the losses and weights of a job that never stopped.

use super::{Cut, RATE, SAMPLES, cuts, weights};
use crate::cases::{Case, Text, range, sizes};
use burn::optim::AdamWConfig;
use burn_pipeline::stage::Names;
use burn_pipeline::train::{Checkpoint, Checkpoints};
use pipeline_tests::at_once::for_each_at_once;
use pipeline_tests::device::few;
use pipeline_tests::reference::{Reference, ReferenceStep};
use tempfile::{TempDir, tempdir};

/// One step past the last saved one: its loss depends on the weights, and the weights after it on the optimizer's
/// state.
const STEPS: usize = 3;

/// The text to learn.
fn text() -> Text {
    Text::new(SAMPLES)
}

fn reference_step<M: Case>(case: &M, reference: &mut Reference<M::Model>) -> ReferenceStep {
    let sizes = sizes(SAMPLES, SAMPLES);
    reference.step(&sizes, RATE, None, |model, i| case.loss(model, range(&sizes, i)))
}

/// The losses and weights after each step of the unpipelined model.
fn plain() -> Vec<(f64, Vec<Vec<f32>>)> {
    let mut reference = Reference::new(text().model());
    let step = |_| (reference_step(&text(), &mut reference).loss, reference.weights());
    (0..STEPS).map(step).collect()
}

fn saved_after(steps: usize, cut: Cut, folder: &TempDir) -> Checkpoint {
    let checkpoints = Checkpoints::new(folder.path().join(format!("{cut:?}")));
    let mut pipeline = cut.pipeline();
    for _ in 0..steps {
        pipeline.step(text().batch(), RATE).unwrap();
    }
    pipeline.save(&checkpoints, &format!("step {steps}")).unwrap();
    checkpoints.latest().unwrap()
}

fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter().map(|row| row.iter().map(|x| x.to_bits()).collect()).collect()
}

/// Resumes from a checkpoint and compares every step.
fn goes_on(checkpoint: &Checkpoint, cut: Cut, expected: &[(f64, Vec<Vec<f32>>)]) {
    let mut pipeline = cut.pipeline();
    pipeline.load(checkpoint).unwrap();
    let done = pipeline.progress().steps as usize;
    for (step, (loss, after)) in expected.iter().enumerate().skip(done) {
        let place = format!("{:?} taken up by {cut:?}, step {step}", checkpoint.plan());
        assert_eq!(pipeline.step(text().batch(), RATE).unwrap().loss, *loss, "{place}");
        assert_eq!(weights(&mut pipeline), bits(after), "{place}");
    }
    assert_eq!(pipeline.progress().steps as usize, STEPS);
}

#[test]
fn every_cut_takes_up_what_the_one_before_it_has_saved() {
    let (folder, expected, cuts) = (tempdir().unwrap(), plain(), cuts());
    // Another number of ranks and, where the list wraps, another schedule.
    let pairs: Vec<(Cut, Cut)> = cuts.iter().copied().zip(cuts.iter().copied().cycle().skip(1)).collect();
    for_each_at_once(5, &pairs, |&(cut, next)| goes_on(&saved_after(2, cut, &folder), next, &expected));
}

#[test]
fn every_cut_takes_up_what_one_of_them_has_saved() {
    let (folder, expected) = (tempdir().unwrap(), plain());
    let checkpoint = saved_after(1, Cut { schedule: "ZBVZeroBubble", ranks: 3, chunks: 2 }, &folder);
    for_each_at_once(5, &few(cuts(), 1), |&cut| goes_on(&checkpoint, cut, &expected));
}

#[test]
fn both_replicas_of_a_bidirectional_placement_take_up_one_copy() {
    let (folder, expected) = (tempdir().unwrap(), plain());
    let one_way = Cut { schedule: "1F1B", ranks: 3, chunks: 1 };
    for both_ways in
        [Cut { schedule: "DualPipe", ranks: 2, chunks: 1 }, Cut { schedule: "Chimera", ranks: 4, chunks: 1 }]
    {
        let checkpoint = saved_after(2, both_ways, &folder);
        assert_eq!(checkpoint.parameters().len(), saved_after(2, one_way, &folder).parameters().len());
        goes_on(&checkpoint, one_way, &expected);
        goes_on(&saved_after(2, one_way, &folder), both_ways, &expected);
    }
}

#[test]
fn the_unpipelined_model_takes_up_what_every_cut_has_saved() {
    let (folder, expected) = (tempdir().unwrap(), plain());
    for_each_at_once(5, &cuts(), |&cut| {
        let checkpoint = saved_after(2, cut, &folder);
        let model = checkpoint.load_module(text().model(), &Names::default()).unwrap();
        let optimizer = AdamWConfig::new().init();
        let optimizer = checkpoint.load_optimizer(optimizer, &model, &Names::default()).unwrap();
        let mut reference = Reference::resumed(model, optimizer);
        for (step, (loss, after)) in expected.iter().enumerate().skip(2) {
            assert_eq!(reference_step(&text(), &mut reference).loss, *loss, "{cut:?}, step {step}");
            assert_eq!(bits(&reference.weights()), bits(after), "{cut:?}, step {step}");
        }
    });
}

#[test]
fn progress_and_what_was_saved_beside_come_back() {
    let folder = tempdir().unwrap();
    let cut = Cut { schedule: "1F1B", ranks: 2, chunks: 1 };
    let checkpoint = saved_after(3, cut, &folder);
    assert_eq!(checkpoint.beside::<String>().unwrap(), "step 3");
    assert!(checkpoint.beside::<u32>().unwrap_err().to_string().contains("beside the model"));
    assert_eq!(checkpoint.plan(), ("1F1B", 2));
    let progress = checkpoint.progress();
    assert_eq!((progress.steps, progress.batches, progress.samples), (3, 3, 3 * SAMPLES as u64));
    let mut pipeline = cut.pipeline();
    pipeline.load(&checkpoint).unwrap();
    assert_eq!(pipeline.progress(), progress);
}

#[test]
fn weights_alone_start_a_new_job_with_a_new_optimizer() {
    let folder = tempdir().unwrap();
    let cut = Cut { schedule: "GPipe", ranks: 2, chunks: 1 };
    let checkpoint = saved_after(2, cut, &folder);
    let mut pipeline = cut.pipeline();
    pipeline.load_weights(&checkpoint).unwrap();
    assert_eq!(pipeline.progress().steps, 0);
    let model = checkpoint.load_module(text().model(), &Names::default()).unwrap();
    let mut reference = Reference::new(model);
    for _ in 0..2 {
        let expected = reference_step(&text(), &mut reference);
        assert_eq!(pipeline.step(text().batch(), RATE).unwrap().loss, expected.loss);
    }
}
