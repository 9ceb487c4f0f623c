//! Grids of pipeline ranks, replicas and members train as the plain loop does.
//!
//! A group of n ranks adds the terms of a matmul in n parts, so numbers agree up to rounding: losses and norms to
//! 1e-5 of their size, weights to 2e-6 after two steps that change them by up to 0.05.

use crate::model::{Grid, batch, builder, builder_of, weights};
use crate::plain::{Config, Plain, SEQUENCE, SMALL};
use burn::optim::SgdConfig;
use burn_pipeline::Builder;
use burn_pipeline::stage::{Accumulation, SplitBackward};
use pipeline_tests::reference::Reference;
use proptest::prelude::{ProptestConfig, proptest};

pub(crate) const RATE: f64 = 0.5;
const CLIP: f64 = 0.1;
pub(crate) const SAMPLES: usize = 8;
const STEPS: usize = 2;

/// Whole and split backwards, one and two chunks, loops and a V.
pub(crate) const SCHEDULES: [(&str, usize); 5] =
    [("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2), ("ZBVZeroBubble", 2), ("DualPipeV", 2)];

/// The schedules for this number of pipeline ranks. On one rank, all with whole backwards run the same rows.
pub(crate) fn schedules(ranks: usize) -> Vec<(&'static str, usize)> {
    let run = |(name, _): &(&str, usize)| ranks > 1 || ["1F1B", "ZBVZeroBubble"].contains(name);
    SCHEDULES.into_iter().filter(run).collect()
}

pub(crate) const ENGINES: [(&str, SplitBackward, bool); 3] = [
    ("eager", SplitBackward::Eager, false),
    ("captured", SplitBackward::Captured, false),
    ("compiled", SplitBackward::Captured, true),
];

const GRIDS: [Grid; 3] = [(1, 1, 2), (2, 1, 2), (2, 2, 2)];

/// The losses and norms of some steps, and the weights after them.
pub(crate) struct Trained {
    pub(crate) steps: Vec<(f64, f64)>,
    pub(crate) weights: Vec<Vec<f32>>,
}

pub(crate) fn plain(config: Config, samples: usize) -> Trained {
    let mut reference = Reference::resumed(config.plain(), SgdConfig::new().init());
    let (tokens, targets) = config.data(samples);
    let sizes = vec![samples / 4; 4];
    let mut step = || {
        let given = reference.step(&sizes, RATE, Some(CLIP), |model: &Plain, i| {
            let rows = i * sizes[0]..(i + 1) * sizes[0];
            let (tokens, targets) = (tokens.clone().slice([rows.clone()]), targets.clone().slice([rows]));
            model.loss(tokens.autodiff(), targets.autodiff())
        });
        (given.loss, given.norm)
    };
    let steps = (0..STEPS).map(|_| step()).collect();
    Trained { steps, weights: reference.weights() }
}

pub(crate) fn trained(config: &Config, builder: Builder, samples: usize) -> Trained {
    let mut pipeline = builder.clip_norm(CLIP).build().unwrap();
    let mut step = || {
        let report = pipeline.step(batch(config, samples), RATE).unwrap();
        (report.loss, report.gradient_norm.unwrap())
    };
    let steps = (0..STEPS).map(|_| step()).collect();
    Trained { steps, weights: weights(&mut pipeline) }
}

pub(crate) fn assert_close(got: &Trained, expected: &Trained, place: &str) {
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-5 * b.abs();
    for (got, expected) in got.steps.iter().zip(&expected.steps) {
        assert!(close(got.0, expected.0), "{place}: loss {} for {}", got.0, expected.0);
        assert!(close(got.1, expected.1), "{place}: norm {} for {}", got.1, expected.1);
        assert!(expected.1 > CLIP, "{place}: the norm {} is not clipped", expected.1);
    }
    let lengths = |trained: &Trained| trained.weights.iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(lengths(got), lengths(expected), "{place}");
    let pairs = got.weights.iter().flatten().zip(expected.weights.iter().flatten());
    let apart = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart < 2e-6, "{place}: weights differ by {apart}");
}

#[test]
fn every_grid_schedule_and_engine_trains_as_the_plain_loop_does() {
    trains_as_the_plain_loop_does(SMALL);
}

#[test]
fn norms_and_boundaries_in_pieces_of_the_sequence_train_as_the_plain_loop_does() {
    trains_as_the_plain_loop_does(SEQUENCE);
}

fn trains_as_the_plain_loop_does(config: Config) {
    let expected = plain(config, SAMPLES);
    assert!(expected.steps[1].0 < expected.steps[0].0 - 0.01, "it learns");
    for grid in GRIDS {
        for schedule in schedules(grid.0) {
            for (engine, split, compile) in ENGINES {
                let builder = builder_of(config, schedule, grid).split(split).compile(compile);
                let place = format!("{schedule:?} on {grid:?}, {engine}");
                assert_close(&trained(&config, builder, SAMPLES), &expected, &place);
            }
        }
    }
}

#[test]
fn one_group_size_has_the_same_bits_under_every_schedule_grid_and_engine_but_the_compiled_one() {
    let bits = |config, schedule, grid, split| {
        let builder = builder_of(config, schedule, grid).split(split).accumulation(Accumulation::Ordered);
        let given = trained(&config, builder, SAMPLES);
        (given.steps.iter().map(|step| step.0.to_bits()).collect::<Vec<_>>(), given.weights)
    };
    for config in [SMALL, SEQUENCE] {
        let first = bits(config, SCHEDULES[0], GRIDS[0], SplitBackward::Eager);
        for grid in GRIDS {
            for schedule in schedules(grid.0) {
                for split in [SplitBackward::Eager, SplitBackward::Captured] {
                    assert!(
                        bits(config, schedule, grid, split) == first,
                        "{config:?}, {schedule:?} on {grid:?}, {split:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn stages_are_captured_and_their_collectives_stand_in_f_and_i() {
    for grid in [(1, 1, 2), (2, 1, 2)] {
        let mut pipeline = builder(("1F1B", 1), grid).split(SplitBackward::Captured).build().unwrap();
        pipeline.step(batch(&SMALL, SAMPLES), RATE).unwrap();
        for (stage, engine) in pipeline.engines().unwrap() {
            let said = engine.reason.contains("operations of its groups");
            assert!(engine.captured && said, "{stage}: {}", engine.reason);
            let programs = &engine.programs[0];
            let count =
                |program: &burn_pipeline::program::Program| program.to_string().matches("start of all-reduce").count();
            let (forward, input, weight) = (programs.forward(), programs.input(), programs.weight());
            assert!(count(forward) > 0 && count(input) > 0, "{stage}: {forward}\n{input}");
            assert_eq!(count(weight), 0, "{stage}: {weight}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_size_that_can_be_cut_trains_as_the_plain_loop_does(
        members in 2usize..5, heads in 1usize..3, head in 1usize..4, hidden in 1usize..4, vocab in 2usize..5,
        seq in 1usize..5, compile in proptest::bool::ANY, sequence in proptest::bool::ANY
    ) {
        let heads = heads * members;
        // Norms over few features can give gradients near 0.
        let width = heads * (head + 1);
        let (hidden, vocab) = (hidden * members, vocab * members);
        let seq = if sequence { seq * members } else { seq };
        let config = Config { width, heads, hidden, vocab, seq, blocks: 1, seed: 7, sequence };
        let split = if compile { SplitBackward::Captured } else { SplitBackward::Eager };
        let builder = builder_of(config, ("1F1B", 1), (1, 1, members)).split(split).compile(compile);
        assert_close(&trained(&config, builder, 4), &plain(config, 4), &format!("{config:?} on {members}"));
    }
}
