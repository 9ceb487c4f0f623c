//! Groups of different sizes train as the plain loop does, under every schedule and engine, and hold one model.

use crate::model::{batch, builder_with, weights};
use crate::parity::{ENGINES, RATE, SAMPLES, SCHEDULES, assert_close, plain, trained};
use crate::plain::{Config, SIZED};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::Device;
use burn_pipeline::link::{TcpLink, Threads};
use burn_pipeline::stage::{Accumulation, SplitBackward};
use burn_pipeline::train::{Checkpoint, Checkpoints, GroupSizes};
use burn_pipeline::{Builder, Pipeline};
use proptest::prelude::{ProptestConfig, proptest};
use std::time::Duration;
use tempfile::tempdir;

/// Sizes that fall and rise between neighbours, from one rank and from several.
const SIZES: [&[usize]; 2] = [&[2, 1], &[1, 2, 4]];

const SEQUENCE: Config = Config { sequence: true, ..SIZED };

fn builder(config: Config, schedule: (&str, usize), replicas: usize, sizes: &[usize]) -> Builder {
    builder_with(config, schedule, (sizes.len(), replicas), sizes.to_vec())
}

#[test]
fn groups_of_every_size_train_as_the_plain_loop_does() {
    train_as_the_plain_loop_does(SIZED);
}

#[test]
fn groups_of_every_size_with_boundaries_in_pieces_train_as_the_plain_loop_does() {
    train_as_the_plain_loop_does(SEQUENCE);
}

fn train_as_the_plain_loop_does(config: Config) {
    let expected = plain(config, SAMPLES);
    assert!(expected.steps[1].0 < expected.steps[0].0 - 0.01, "it learns");
    for sizes in SIZES {
        for schedule in SCHEDULES {
            for (engine, split, compile) in ENGINES {
                let builder = builder(config, schedule, 1, sizes).split(split).compile(compile);
                let place = format!("{schedule:?} on {sizes:?}, {engine}");
                assert_close(&trained(&config, builder, SAMPLES), &expected, &place);
            }
        }
    }
}

#[test]
fn replicas_of_groups_of_different_sizes_train_as_the_plain_loop_does() {
    for config in [SIZED, SEQUENCE] {
        let expected = plain(config, SAMPLES);
        for (sizes, schedule) in [([1, 2], SCHEDULES[1]), ([2, 1], SCHEDULES[3]), ([2, 4], SCHEDULES[2])] {
            for (engine, split, compile) in ENGINES {
                let builder = builder(config, schedule, 2, &sizes).split(split).compile(compile);
                let place = format!("{schedule:?} on two replicas of {sizes:?}, {engine}");
                assert_close(&trained(&config, builder, SAMPLES), &expected, &place);
            }
        }
    }
}

#[test]
fn skewed_sizes_have_the_same_bits_over_replicas_and_engines_but_the_compiled_one() {
    for config in [SIZED, SEQUENCE] {
        let bits = |schedule, replicas, split| {
            let builder = builder(config, schedule, replicas, &[1, 2]).split(split).accumulation(Accumulation::Ordered);
            let given = trained(&config, builder, SAMPLES);
            (given.steps.iter().map(|step| step.0.to_bits()).collect::<Vec<_>>(), given.weights)
        };
        // One stage per rank, so that each stage has one size.
        let first = bits(SCHEDULES[0], 1, SplitBackward::Eager);
        for (schedule, replicas, split) in [
            (SCHEDULES[1], 1, SplitBackward::Eager),
            (SCHEDULES[0], 1, SplitBackward::Captured),
            (SCHEDULES[1], 2, SplitBackward::Captured),
        ] {
            assert!(bits(schedule, replicas, split) == first, "{config:?}, {schedule:?}, {replicas}, {split:?}");
        }
    }
}

#[test]
fn one_size_for_all_is_the_same_pipeline_as_that_size_for_each() {
    let bits = |sizes: GroupSizes| {
        let builder = builder_with(SEQUENCE, ("1F1B", 1), (2, 1), sizes);
        let given = trained(&SEQUENCE, builder, SAMPLES);
        (given.steps.iter().map(|step| step.0.to_bits()).collect::<Vec<_>>(), given.weights)
    };
    assert!(bits(2.into()) == bits([2, 2].into()));
}

#[test]
fn an_evaluation_has_each_loss_once_and_the_outputs_of_the_last_group() {
    let mut one = builder(SIZED, ("1F1B", 1), 1, &[1, 1]).build().unwrap();
    let expected = one.eval(batch(&SIZED, 8)).unwrap();
    for (sizes, replicas) in [(vec![1, 2], 1), (vec![4, 2], 1), (vec![2, 1], 2)] {
        let mut pipeline = builder(SIZED, ("1F1B", 1), replicas, &sizes).build().unwrap();
        let report = pipeline.eval(batch(&SIZED, 8)).unwrap();
        let (loss, of_one) = (report.loss.unwrap(), expected.loss.unwrap());
        assert!((loss - of_one).abs() < 1e-5, "{sizes:?}: {loss} for {of_one}");
        assert_eq!(report.losses.len(), 4);
        // The first member of the last group, in the replica that ran the microbatch.
        let first = sizes[0] * replicas;
        let ranks = |index: usize| first + index * replicas / 4 * sizes[1];
        assert!(report.losses.iter().all(|loss| loss.rank == ranks(loss.index)), "{:?}", report.losses);
        // Training continues afterwards.
        pipeline.step(batch(&SIZED, 8), RATE).unwrap();
    }
}

#[test]
fn a_checkpoint_moves_between_grids_of_any_sizes() {
    let folder = tempdir().unwrap();
    let build = |(sizes, replicas): (&[usize], usize)| {
        let builder = builder(SEQUENCE, ("1F1B", 1), replicas, sizes).optimizer(|| AdamWConfig::new().init());
        builder.clip_norm(0.1).build().unwrap()
    };
    let step = |pipeline: &mut Pipeline| pipeline.step(batch(&SEQUENCE, 8), 0.01).unwrap().loss;
    let grids: [(&[usize], usize); 6] =
        [(&[1], 1), (&[1, 2], 1), (&[4, 2], 1), (&[2, 2], 2), (&[2, 1], 2), (&[1, 2, 4], 1)];
    for from in [grids[1], grids[2], grids[4]] {
        let mut pipeline = build(from);
        step(&mut pipeline);
        step(&mut pipeline);
        let path = pipeline.save(&Checkpoints::new(folder.path().join(format!("{from:?}"))), &7_u32).unwrap();
        let checkpoint = Checkpoint::open(path).unwrap();
        let (held, exported) = (weights(&mut pipeline), folder.path().join("from.safetensors"));
        pipeline.export(&exported).unwrap();
        let losses = [step(&mut pipeline), step(&mut pipeline)];
        for to in grids {
            let place = format!("from {from:?} to {to:?}");
            let mut resumed = build(to);
            resumed.load(&checkpoint).unwrap();
            assert_eq!(resumed.progress().steps, 2);
            assert!(weights(&mut resumed) == held, "{place}: other weights");
            let again = folder.path().join("to.safetensors");
            resumed.export(&again).unwrap();
            assert!(std::fs::read(&again).unwrap() == std::fs::read(&exported).unwrap(), "{place}: another export");
            // Without the saved moments, the next step would change every weight by as much as the learning rate.
            for expected in losses {
                let loss = step(&mut resumed);
                assert!((loss - expected).abs() < 1e-5 * expected, "{place}: loss {loss} for {expected}");
            }
        }
    }
}

#[test]
fn groups_of_different_sizes_over_tcp_give_the_bits_of_threads() {
    for (sizes, replicas, split) in [(vec![1, 2], 1, SplitBackward::Captured), (vec![2, 1], 2, SplitBackward::Eager)] {
        let ranks = sizes.iter().sum::<usize>() * replicas;
        let builder = || builder(SEQUENCE, ("1F1B", 1), replicas, &sizes).split(split).clip_norm(0.1);
        let mut pipeline = builder().build().unwrap();
        let steps = |pipeline: &mut Pipeline| {
            let step = |_| pipeline.step(batch(&SEQUENCE, 8), RATE).unwrap();
            let steps = [0, 1].map(step).map(|step| (step.loss, step.gradient_norm));
            (steps, weights(pipeline))
        };
        let expected = steps(&mut pipeline);
        let threads = Threads::new(ranks);
        std::thread::scope(|scope| {
            for rank in 0..ranks {
                let (threads, builder, expected, steps) = (threads.clone(), builder(), &expected, &steps);
                scope.spawn(move || {
                    let mut first = threads.link(rank, Device::flex());
                    let link = TcpLink::by_link(&mut first, Device::flex(), Duration::from_secs(20)).unwrap();
                    let mut pipeline = builder.build_rank(Box::new(link)).unwrap();
                    assert_eq!(&steps(&mut pipeline), expected, "rank {rank}");
                });
            }
        });
    }
}

#[test]
fn a_job_with_too_few_processes_is_told_how_many_ranks_it_has() {
    let threads = Threads::new(4);
    let build = builder(SIZED, ("1F1B", 1), 2, &[1, 2]).optimizer(|| SgdConfig::new().init());
    let error = build.build_rank(Box::new(threads.link(0, Device::flex()))).unwrap_err().to_string();
    assert!(error.contains("the plan has 2 rank(s), 6 with all data-parallel replicas"), "{error}");
    assert!(error.contains("the link has 4; start 6 processes"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_sizes_that_fit_train_as_the_plain_loop_does(
        powers in proptest::collection::vec(0u32..3, 2..4), three in proptest::bool::ANY,
        sequence in proptest::bool::ANY, captured in proptest::bool::ANY, compile in proptest::bool::ANY,
        schedule in 0usize..5
    ) {
        // Powers of one number divide each other.
        let size = |&power: &u32| if three { 3usize.pow(power.min(1)) } else { 2usize.pow(power) };
        let sizes: Vec<usize> = powers.iter().map(size).collect();
        let largest = *sizes.iter().max().unwrap();
        let (heads, hidden, vocab, seq) = (largest, 2 * largest, 3 * largest, if sequence { 2 * largest } else { 5 });
        let (width, blocks) = (2 * heads.max(4) / heads * heads, sizes.len() * 2);
        let config = Config { width, heads, hidden, vocab, seq, blocks, seed: 5, sequence };
        let split = if captured { SplitBackward::Captured } else { SplitBackward::Eager };
        let builder = builder(config, SCHEDULES[schedule], 1, &sizes).split(split).compile(captured && compile);
        let place = format!("{config:?} on {sizes:?}, {:?}", SCHEDULES[schedule]);
        assert_close(&trained(&config, builder, 4), &plain(config, 4), &place);
    }
}
