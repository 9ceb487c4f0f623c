//! Each parameter's optimizer is restored, also on another cut.

use super::{Cut, RATE, SAMPLES, weights};
use crate::cases::{Case, Text};
use burn::module::ParamGroup;
use burn::optim::{AdamWConfig, SgdConfig, momentum::MomentumConfig};
use burn_pipeline::train::{Checkpoints, Pipeline};
use tempfile::tempdir;

/// Momentum for one block, AdamW for all others.
fn pipeline(cut: Cut) -> Pipeline {
    let grouped = || {
        let momentum = SgdConfig::new().with_momentum(Some(MomentumConfig::new())).build();
        AdamWConfig::new().init().with_group(ParamGroup::from_predicate("blocks.5."), momentum, None)
    };
    cut.builder().optimizer(grouped).build().unwrap()
}

#[test]
fn a_resumed_cut_steps_each_group_as_the_one_that_saved_it() {
    let cut = |ranks| Cut { schedule: "1F1B", ranks, chunks: 1 };
    let folder = tempdir().unwrap();
    let mut first = pipeline(cut(2));
    for _ in 0..2 {
        first.step(Text::new(SAMPLES).batch(), RATE).unwrap();
    }
    let checkpoints = Checkpoints::new(folder.path());
    first.save(&checkpoints, &()).unwrap();
    first.step(Text::new(SAMPLES).batch(), RATE).unwrap();
    for ranks in [1, 3, 4] {
        let mut second = pipeline(cut(ranks));
        second.load(&checkpoints.latest().unwrap()).unwrap();
        second.step(Text::new(SAMPLES).batch(), RATE).unwrap();
        assert_eq!(weights(&mut second), weights(&mut first), "{ranks} ranks");
    }
}
