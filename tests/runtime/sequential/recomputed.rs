//! A layer that is recomputed makes the stages that hold it recompute, in every cut, with the same numbers.

use super::{batch, builder, listed, plain, weights};
use burn_pipeline::Pipeline;
use burn_pipeline::stage::SplitBackward;

/// Which stages say that their activations are recomputed.
fn recomputing(pipeline: &mut Pipeline) -> Vec<bool> {
    let engines = pipeline.engines().unwrap();
    engines.iter().map(|(_, engine)| engine.reason.contains("recomputed")).collect()
}

#[test]
fn stages_that_hold_a_recomputed_layer_recompute_and_no_others() {
    let (losses, expected) = plain(2);
    // Layers: embed, down 0 1 2, up 3 4 5, head.
    for (ranks, wanted) in [
        (1, vec![true]),
        (2, vec![true, false]),
        (4, vec![true, true, false, false]),
        (8, vec![false, true, true, true, false, false, false, false]),
    ] {
        for split in [SplitBackward::Eager, SplitBackward::Auto] {
            let mut pipeline = builder("1F1B", ranks).layers(listed(true)).split(split).build().unwrap();
            for (step, loss) in losses.iter().enumerate() {
                assert_eq!(pipeline.step(batch(step), 1e-2).unwrap().loss, *loss, "{ranks} ranks, {split:?}");
            }
            assert!(weights(&mut pipeline) == expected, "{ranks} ranks, {split:?}");
            assert_eq!(recomputing(&mut pipeline), wanted, "{split:?}");
            let mut whole = builder("1F1B", ranks).layers(listed(true).recomputed(true)).split(split).build().unwrap();
            assert_eq!(recomputing(&mut whole), vec![true; ranks]);
        }
    }
}
