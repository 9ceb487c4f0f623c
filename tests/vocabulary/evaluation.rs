//! Evaluations of vocabulary-parallel pipelines: the loss of the ordinary layers, and the last stage's outputs.

use crate::model::{BOTH, EMBEDDING, HEAD, NOTHING, batch, builder};
use crate::plain::data;
use burn::tensor::{Tensor, Tolerance};
use burn_pipeline::Batch;

#[test]
fn an_evaluation_has_the_loss_of_the_ordinary_layers() {
    let mut whole = builder(NOTHING, ("1F1B", 1), 2, 4).build().unwrap();
    let expected = whole.eval(batch(8)).unwrap();
    for parallel in [BOTH, HEAD, EMBEDDING] {
        for (schedule, ranks) in [(("1F1B", 1), 2), (("ZBVZeroBubble", 2), 3)] {
            let mut pipeline = builder(parallel, schedule, ranks, 2 * ranks).build().unwrap();
            let got = pipeline.eval(batch(8)).unwrap();
            let (got, expected) = (got.loss.unwrap(), expected.loss.unwrap());
            assert!((got - expected).abs() <= 1e-5 * expected, "{parallel:?}, {schedule:?}: {got} for {expected}");
        }
    }
}

#[test]
fn outputs_are_the_last_stages_with_a_target_and_without_and_in_training() {
    let outputs = |pipeline: &mut burn_pipeline::Pipeline, batch: Batch| {
        let output: Tensor<3> = pipeline.eval(batch).unwrap().output().unwrap();
        output.into_data()
    };
    let mut pipeline = builder(BOTH, ("1F1B", 1), 2, 4).outputs(true).build().unwrap();
    let with_target = outputs(&mut pipeline, batch(8));
    assert_eq!(with_target.shape().to_vec(), [8, 5, 8]);
    assert_eq!(outputs(&mut pipeline, Batch::new(data(8).0)), with_target);
    let report = pipeline.step(batch(8), 0.1).unwrap();
    let trained: Tensor<3> = report.output().unwrap();
    // Norms round differently under autodiff.
    trained.into_data().assert_approx_eq::<f32>(&with_target, Tolerance::absolute(1e-5));
    assert_ne!(outputs(&mut pipeline, batch(8)), with_target, "the weights were stepped");
}
