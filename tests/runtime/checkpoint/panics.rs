//! The user's code that panics while a checkpoint is read fails the load alone.

use crate::cases::{Case, Text};
use burn::optim::AdamWConfig;
use burn::tensor::Device;
use burn_pipeline::schedule::{GPipe, Size};
use burn_pipeline::stage::Names;
use burn_pipeline::train::{Checkpoints, Pipeline};
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};
use tempfile::tempdir;

#[test]
fn a_panic_at_any_place_of_a_load_leaves_the_pipeline_and_its_weights() {
    let folder = tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path());
    // How often names can be asked for before one panics.
    let left = Arc::new(AtomicIsize::new(isize::MAX));
    let asked = left.clone();
    let stages = move |at: &burn_pipeline::train::StageContext| {
        let asked = asked.clone();
        let renamed = move |name: &str| {
            assert!(asked.fetch_sub(1, Ordering::SeqCst) != 1, "this name panics");
            name.to_owned()
        };
        Text::stage(at).named(Names::default().renamed(renamed))
    };
    let builder = Pipeline::builder().schedule(GPipe, Size::new(1, 2)).devices(vec![Device::flex()]);
    let mut pipeline = builder.stages(stages).optimizer(|| AdamWConfig::new().init()).build().unwrap();
    let step = |pipeline: &mut Pipeline| pipeline.step(Text::new(2).batch(), super::RATE).unwrap().loss;
    step(&mut pipeline);
    pipeline.save(&checkpoints, &()).unwrap();
    let latest = checkpoints.latest().unwrap();
    let expected = super::weights(&mut pipeline);
    let mut refused = 0;
    for calls in (1..).step_by(7) {
        left.store(calls, Ordering::SeqCst);
        let loaded = pipeline.load(&latest);
        left.store(isize::MAX, Ordering::SeqCst);
        match loaded {
            Ok(()) => break,
            Err(error) => assert!(error.to_string().contains("this name panics"), "{error}"),
        }
        assert_eq!(super::weights(&mut pipeline), expected, "a load that failed after {calls} calls");
        refused += 1;
    }
    assert!(refused > 10, "{refused} loads failed");
    step(&mut pipeline);
}
