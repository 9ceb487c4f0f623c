//! A vocabulary-parallel model over all ranks.

#[allow(dead_code, reason = "the tests of vocabularies use all of it")]
#[path = "../../vocabulary/model.rs"]
mod model;
#[allow(dead_code, reason = "as above")]
#[path = "../../vocabulary/plain.rs"]
mod plain;

use super::start;
use crate::{TIMEOUT, link};
use burn_pipeline::stage::SplitBackward;
use model::{BOTH, TIED, builder, trained};
use pipeline_tests::on_device::OnDevice;

/// Runs the named part of a rank's process. Returns false for any other name.
pub(super) fn part(name: &str) -> bool {
    if name == "vocabulary" {
        vocabulary_parallel();
    }
    name == "vocabulary"
}

fn vocabulary_parallel() {
    let ranks: usize = std::env::var("WORLD_SIZE").unwrap().parse().unwrap();
    let cases = [(BOTH, SplitBackward::Eager), (TIED, SplitBackward::Eager), (BOTH, SplitBackward::Captured)];
    for (place, (parallel, split)) in cases.into_iter().enumerate() {
        let schedule = if place == 1 { "ZBH1" } else { "1F1B" };
        let builder =
            || builder(parallel, (schedule, 1), ranks, 2 * ranks).split(split).clip_norm(0.1).timeout(TIMEOUT);
        let (link, device) = link();
        let mut over_nccl = builder().build_rank(Box::new(OnDevice::flat(link, device))).unwrap();
        let got = trained(&mut over_nccl, 4 * ranks, 2, 0.5);
        let expected = trained(&mut builder().build().unwrap(), 4 * ranks, 2, 0.5);
        assert_eq!(got.steps, expected.steps, "{parallel:?}, {split:?}");
        assert!(got.weights == expected.weights, "{parallel:?}, {split:?}: other weights");
    }
}

#[test]
fn a_vocabulary_parallel_has_the_bits_of_threads() {
    for ranks in [2, 4] {
        start(ranks, "vocabulary", &[]).all_pass();
    }
}
