//! Two data-parallel replicas of two ranks with computing on the mock's processors, with whole and with sharded
//! parameters: losses are the plain loop's up to rounding, also of evaluations, and a resumed job has the bits of one
//! that never stopped.

use super::tower::{ROUNDING, STEPS, Tower, apart, losses, pipeline, weights};
use crate::cases::Case;
use burn_pipeline::schedule::Size;
use burn_pipeline::train::{Checkpoints, Pipeline};

const REPLICAS: usize = 2;
/// Of all replicas.
const MICROBATCHES: usize = 4;

/// Trains, evaluates and resumes.
pub(super) fn replicas(sharded: bool) {
    let case = Tower::new(MICROBATCHES);
    let sizes = vec![1; MICROBATCHES];
    let (expected, plain) = case.plain(&sizes, &[vec![0, 1], vec![2, 3]]);
    assert!(expected[1] < expected[0], "the loss falls: {expected:?}");
    let size = Size::new(2, MICROBATCHES / REPLICAS);
    let new = || pipeline("1F1B", size, |builder| builder.data_parallel(REPLICAS).sharded(sharded));

    let mut whole = new();
    let mut got = losses(&mut whole, &case, 1);
    let folder = format!("{}/checkpoints-{sharded}", std::env::var("STAND_IN_ROOMS").unwrap());
    let checkpoints = Checkpoints::new(folder);
    whole.save(&checkpoints, &"after one step").unwrap();
    got.extend(losses(&mut whole, &case, STEPS - 1));
    assert!(apart(&got, &expected) < ROUNDING, "sharded: {sharded}: {got:?}, the plain loop {expected:?}");

    let evaluated = [evaluated(&mut whole, &case), case.evaluated(&plain.model, &sizes)];
    assert!(apart(&evaluated[..1], &evaluated[1..]) < ROUNDING, "sharded: {sharded}: evaluations {evaluated:?}");
    assert!(evaluated[0] < got[1], "the second step has an effect: {evaluated:?}, {got:?}");
    let ended = weights(&mut whole);
    drop(whole);

    let mut resumed = new();
    resumed.load(&checkpoints.latest().unwrap()).unwrap();
    assert_eq!(losses(&mut resumed, &case, STEPS - 1), got[1..], "sharded: {sharded}: after the checkpoint");
    assert!(weights(&mut resumed) == ended, "sharded: {sharded}: other weights after the checkpoint");
}

fn evaluated(pipeline: &mut Pipeline, case: &Tower) -> f64 {
    pipeline.eval(case.batch()).unwrap().loss.unwrap()
}
