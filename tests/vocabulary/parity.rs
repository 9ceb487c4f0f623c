//! Vocabulary-parallel pipelines train as the plain loop does.
//!
//! The softmax is added up in as many parts as there are ranks, so numbers agree up to rounding: losses and norms
//! to 1e-5 of their size, weights to 2e-6 after two steps that change them by up to 0.05.

use crate::model::{BOTH, EMBEDDING, HEAD, NOTHING, Parallel, TIED, batch, builder, stage_or_broken, trained, weights};
use crate::plain::{self, Plain, Trained, VOCABULARY, WIDTH, plain, plain_of, plain_step, plain_weights};
use burn::module::{Module, Param};
use burn::nn::{Embedding, Linear};
use burn::optim::SgdConfig;
use burn::optim::momentum::MomentumConfig;
use burn::tensor::{Device, Tensor};
use burn_pipeline::stage::{Accumulation, Reduction, SplitBackward, Stage, StageBox};
use burn_pipeline::train::OnNonFinite;
use burn_pipeline::{Batch, Vocabulary};
use pipeline_tests::reference::Reference;
use proptest::prelude::{ProptestConfig, proptest};

const RATE: f64 = 0.5;
const CLIP: f64 = 0.1;
const STEPS: usize = 2;

/// Whole and split backwards, one and two chunks, loops and a V.
const SCHEDULES: [(&str, usize); 4] = [("1F1B", 1), ("Interleaved1F1B", 2), ("ZBH1", 1), ("ZBVZeroBubble", 2)];

const ENGINES: [(&str, SplitBackward, bool); 3] = [
    ("eager", SplitBackward::Eager, false),
    ("captured", SplitBackward::Captured, false),
    ("compiled", SplitBackward::Captured, true),
];

/// Microbatches of two samples, twice as many as ranks.
fn sizes(ranks: usize) -> Vec<usize> {
    vec![2; 2 * ranks]
}

fn assert_close(got: &Trained, expected: &Trained, place: &str) {
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-5 * b.abs();
    for (got, expected) in got.steps.iter().zip(&expected.steps) {
        assert!(close(got.0, expected.0), "{place}: loss {} for {}", got.0, expected.0);
        assert!(close(got.1, expected.1), "{place}: norm {} for {}", got.1, expected.1);
    }
    let sizes = |trained: &Trained| {
        trained.weights.iter().map(|(name, values)| (name.clone(), values.len())).collect::<Vec<_>>()
    };
    assert_eq!(sizes(got), sizes(expected), "{place}");
    for (name, values) in &got.weights {
        let apart = values.iter().zip(&expected.weights[name]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart < 2e-6, "{place}: the weights `{name}` differ by {apart}");
    }
}

fn trains_as_the_plain_loop_does(ranks: usize) {
    let expected = plain(&sizes(ranks), STEPS, RATE, CLIP, SgdConfig::new().init());
    assert!(expected.steps[1].0 < expected.steps[0].0 - 0.01, "it learns");
    assert!(expected.steps.iter().all(|step| step.1 > CLIP), "norms are not clipped");
    for parallel in [BOTH, EMBEDDING, HEAD] {
        for schedule in SCHEDULES {
            for (engine, split, compile) in ENGINES {
                let builder =
                    builder(parallel, schedule, ranks, 2 * ranks).split(split).compile(compile).clip_norm(CLIP);
                let got = trained(&mut builder.build().unwrap(), 4 * ranks, STEPS, RATE);
                assert_close(&got, &expected, &format!("{parallel:?}, {schedule:?} on {ranks} ranks, {engine}"));
            }
        }
    }
}

#[test]
fn every_schedule_and_engine_on_two_ranks_trains_as_the_plain_loop_does() {
    trains_as_the_plain_loop_does(2);
}

#[test]
fn every_schedule_and_engine_on_three_ranks_trains_as_the_plain_loop_does() {
    trains_as_the_plain_loop_does(3);
}

#[test]
fn every_schedule_and_engine_on_four_ranks_trains_as_the_plain_loop_does() {
    trains_as_the_plain_loop_does(4);
}

#[test]
fn words_that_cannot_be_cut_evenly_train_as_the_plain_loop_does() {
    for (ranks, schedule) in [(5, ("1F1B", 1)), (5, ("ZBH1", 1)), (7, ("1F1B", 1))] {
        assert!(!VOCABULARY.is_multiple_of(ranks));
        let expected = plain(&sizes(ranks), STEPS, RATE, CLIP, SgdConfig::new().init());
        for parallel in [BOTH, EMBEDDING, HEAD] {
            let mut pipeline = builder(parallel, schedule, ranks, 2 * ranks).clip_norm(CLIP).build().unwrap();
            let got = trained(&mut pipeline, 4 * ranks, STEPS, RATE);
            assert_close(&got, &expected, &format!("{parallel:?}, {schedule:?} on {ranks} ranks"));
        }
    }
}

#[test]
fn one_rank_has_the_whole_vocabulary_as_its_piece() {
    let optimizer = || SgdConfig::new().init();
    for (parallel, expected) in [
        (BOTH, plain(&sizes(1), STEPS, RATE, CLIP, optimizer())),
        (TIED, plain_of(Plain::tied(), &sizes(1), STEPS, RATE, CLIP, optimizer())),
    ] {
        let got = trained(&mut builder(parallel, ("1F1B", 1), 1, 2).clip_norm(CLIP).build().unwrap(), 4, STEPS, RATE);
        assert_close(&got, &expected, &format!("{parallel:?} on one rank"));
    }
}

#[test]
fn layers_whose_weights_are_nodes_of_a_graph_are_trained_as_leaves_are() {
    let optimizer = || SgdConfig::new().init();
    let layers = || {
        let embedding = |device: &Device| {
            let layer = plain::token(device);
            Embedding { weight: layer.weight.map(|weight| weight * 1.0) }
        };
        let head = |device: &Device| {
            let layer = plain::scores(device);
            Linear { weight: layer.weight.map(|weight| weight * 1.0), bias: None }
        };
        Vocabulary::new().embedding("token", embedding).head("scores", head)
    };
    for ranks in [1, 2, 3] {
        let expected = plain(&sizes(ranks), STEPS, RATE, CLIP, optimizer());
        let builder = builder(BOTH, ("1F1B", 1), ranks, 2 * ranks).vocabulary(layers()).clip_norm(CLIP);
        let got = trained(&mut builder.build().unwrap(), 4 * ranks, STEPS, RATE);
        assert_close(&got, &expected, &format!("{ranks} ranks"));
    }
}

#[test]
fn one_matrix_as_embedding_and_head_trains_as_in_the_plain_loop() {
    let optimizer = || SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init();
    for ranks in [2, 3, 5] {
        let expected = plain_of(Plain::tied(), &sizes(ranks), STEPS, RATE, CLIP, optimizer());
        assert!(expected.steps[1].0 < expected.steps[0].0 - 0.01, "it learns");
        assert!(!expected.weights.contains_key("scores.weight"));
        for schedule in SCHEDULES.into_iter().filter(|schedule| ranks < 5 || schedule.1 == 1) {
            for (engine, split, compile) in ENGINES {
                let builder = builder(TIED, schedule, ranks, 2 * ranks).optimizer(optimizer).clip_norm(CLIP);
                let mut pipeline = builder.split(split).compile(compile).build().unwrap();
                let got = trained(&mut pipeline, 4 * ranks, STEPS, RATE);
                assert_close(&got, &expected, &format!("{schedule:?} on {ranks} ranks, {engine}"));
            }
        }
    }
}

#[test]
fn one_matrix_has_the_same_bits_in_every_run_and_with_ordered_sums_under_every_schedule() {
    let run = |schedule, accumulation, replicas: usize| {
        let builder = builder(TIED, schedule, 3, 6).data_parallel(replicas).accumulation(accumulation).clip_norm(CLIP);
        trained(&mut builder.build().unwrap(), 12 * replicas, STEPS, RATE)
    };
    for replicas in [1, 2] {
        let ordered = run(SCHEDULES[0], Accumulation::Ordered, replicas);
        for schedule in SCHEDULES {
            let first = run(schedule, Accumulation::AsTheyCome, replicas);
            assert!((0..2).all(|_| run(schedule, Accumulation::AsTheyCome, replicas) == first), "{schedule:?}");
            assert!(run(schedule, Accumulation::Ordered, replicas) == ordered, "{schedule:?}");
        }
        let optimizer = SgdConfig::new().init();
        let expected = plain_of(Plain::tied(), &vec![2; 6 * replicas], STEPS, RATE, CLIP, optimizer);
        assert_close(&ordered, &expected, &format!("{replicas} replicas"));
    }
}

#[test]
fn an_optimizer_with_state_steps_pieces_as_whole_layers() {
    // AdamW would scale gradients that are only rounding (of a key's bias, say) up to whole steps.
    let optimizer = || SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init();
    let expected = plain(&sizes(2), 3, RATE, CLIP, optimizer());
    let builder = builder(BOTH, ("ZBVZeroBubble", 2), 2, 4).optimizer(optimizer).clip_norm(CLIP);
    assert_close(&trained(&mut builder.build().unwrap(), 8, 3, RATE), &expected, "momentum");
}

#[test]
fn runs_have_the_same_bits_and_with_ordered_sums_all_schedules_have() {
    for ranks in [2, 3] {
        let run = |parallel: Parallel, schedule, accumulation| {
            let builder = builder(parallel, schedule, ranks, 2 * ranks).accumulation(accumulation).clip_norm(CLIP);
            trained(&mut builder.build().unwrap(), 4 * ranks, STEPS, RATE)
        };
        for schedule in SCHEDULES {
            let first = run(BOTH, schedule, Accumulation::AsTheyCome);
            assert!((0..3).all(|_| run(BOTH, schedule, Accumulation::AsTheyCome) == first), "{schedule:?}");
        }
        let ordered = run(BOTH, SCHEDULES[0], Accumulation::Ordered);
        for schedule in SCHEDULES {
            assert!(run(BOTH, schedule, Accumulation::Ordered) == ordered, "{schedule:?} on {ranks} ranks");
        }
        // Ordinary layers match the plain pipeline bit for bit, since the vocabulary-parallel embedding only adds
        // zeros.
        let whole = run(NOTHING, SCHEDULES[0], Accumulation::Ordered);
        assert_eq!(run(EMBEDDING, SCHEDULES[0], Accumulation::Ordered).steps[0].0, whole.steps[0].0);
    }
}

#[test]
fn uneven_microbatches_and_batches_of_other_sizes_weigh_as_their_samples_do() {
    let mut reference = Reference::resumed(Plain::new(), SgdConfig::new().init());
    let mut pipeline = builder(BOTH, ("ZBH1", 1), 2, 4).clip_norm(CLIP).build().unwrap();
    // Seven samples in four microbatches, then three in three.
    for sizes in [vec![2, 2, 2, 1], vec![1; 3], vec![2; 4]] {
        let expected = plain_step(&mut reference, &sizes, RATE, Some(CLIP), 1.0);
        let got = pipeline.step(batch(sizes.iter().sum()), RATE).unwrap();
        assert!((got.loss - expected.0).abs() <= 1e-5 * expected.0, "{sizes:?}: {} for {}", got.loss, expected.0);
    }
    let got = Trained { steps: Vec::new(), weights: weights(&mut pipeline) };
    let expected = Trained { steps: Vec::new(), weights: plain_weights(&reference.model) };
    assert_close(&got, &expected, "uneven");
}

/// Uses a vector of its own instead of its input where a microbatch has one sample.
#[derive(Module, Debug)]
struct Dropping {
    rest: Param<Tensor<1>>,
}

impl Stage for Dropping {
    type Input = Tensor<3>;
    type Extra = ();
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, (): ()) -> Tensor<3> {
        match x.dims() {
            shape @ [1, ..] => self.rest.val().unsqueeze::<3>().expand(shape),
            _ => x,
        }
    }
}

#[test]
fn a_microbatch_that_does_not_use_its_vectors_leaves_the_gradients_of_later_ones() {
    let train = |accumulation: Accumulation, replicas: usize| {
        let builder = builder(EMBEDDING, ("1F1B", 1), 2, 4 / replicas).split(SplitBackward::Eager);
        let builder = builder.data_parallel(replicas).accumulation(accumulation).stages(|at| match at.is_first() {
            true => StageBox::new(Dropping { rest: Param::from_tensor(Tensor::ones([WIDTH], &at.device)) }),
            false => stage_or_broken(EMBEDDING, None, at),
        });
        let mut pipeline = builder.build().unwrap();
        let before = weights(&mut pipeline)["token.weight"].clone();
        let pieces = [2, 1, 3, 2].map(batch).to_vec();
        pipeline.step(Batch::from_microbatches(pieces), RATE).unwrap();
        (before, weights(&mut pipeline)["token.weight"].clone())
    };
    for replicas in [1, 2] {
        let (before, expected) = train(Accumulation::AsTheyCome, replicas);
        let (_, ordered) = train(Accumulation::Ordered, replicas);
        let apart = |one: &[f32], other: &[f32]| one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart(&before, &expected) > 1e-3, "the table is trained");
        assert!(apart(&ordered, &expected) < 1e-6, "{replicas} replicas: {}", apart(&ordered, &expected));
    }
}

#[test]
fn accumulated_batches_count_as_one() {
    let mut reference = Reference::resumed(Plain::new(), SgdConfig::new().init());
    let mut pipeline = builder(BOTH, ("1F1B", 1), 2, 4).clip_norm(CLIP).build().unwrap();
    pipeline.accumulate(batch(8)).unwrap();
    let got = pipeline.step(batch(8), RATE).unwrap();
    // The same batch twice gives the gradients of one.
    let expected = plain_step(&mut reference, &[2; 4], RATE, Some(CLIP), 1.0);
    assert!((got.loss - expected.0).abs() <= 1e-5 * expected.0, "{} for {}", got.loss, expected.0);
    let got = Trained { steps: Vec::new(), weights: weights(&mut pipeline) };
    let expected = Trained { steps: Vec::new(), weights: plain_weights(&reference.model) };
    assert_close(&got, &expected, "accumulated");
}

#[test]
fn a_sum_over_tokens_is_a_loss_too() {
    let rate = RATE / 40.0;
    let mut reference = Reference::resumed(Plain::new(), SgdConfig::new().init());
    // A mean over 40 tokens, times 40.
    let expected = plain_step(&mut reference, &[2; 4], rate, None, 40.0);
    let mut pipeline = builder(BOTH, ("1F1B", 1), 2, 4).reduction(Reduction::Sum).build().unwrap();
    let got = pipeline.step(batch(8), rate).unwrap();
    assert!((got.loss - expected.0).abs() <= 1e-5 * expected.0, "{} for {}", got.loss, expected.0);
    let got = Trained { steps: Vec::new(), weights: weights(&mut pipeline) };
    let expected = Trained { steps: Vec::new(), weights: plain_weights(&reference.model) };
    assert_close(&got, &expected, "a sum");
}

#[test]
fn recomputed_stages_and_replicas_sharded_or_not_train_as_the_plain_loop_does() {
    let expected = plain(&[2; 8], STEPS, RATE, CLIP, SgdConfig::new().init());
    for accumulation in [Accumulation::AsTheyCome, Accumulation::Ordered] {
        let builder = builder(BOTH, ("ZBH1", 1), 2, 4).data_parallel(2).accumulation(accumulation).clip_norm(CLIP);
        let got = trained(&mut builder.build().unwrap(), 16, STEPS, RATE);
        assert_close(&got, &expected, &format!("two replicas, {accumulation:?}"));
    }
    for (schedule, (engine, split, compile)) in SCHEDULES.into_iter().zip(ENGINES.into_iter().cycle()) {
        let sharded = builder(BOTH, schedule, 2, 4).data_parallel(2).sharded(true).split(split).compile(compile);
        let got = trained(&mut sharded.clip_norm(CLIP).build().unwrap(), 16, STEPS, RATE);
        assert_close(&got, &expected, &format!("{schedule:?}, two replicas, sharded, {engine}"));
    }
    let recomputed = builder(BOTH, ("1F1B", 1), 2, 8)
        .stages(|at| crate::model::stage_or_broken(BOTH, None, at).recomputed(true))
        .clip_norm(CLIP);
    assert_close(&trained(&mut recomputed.build().unwrap(), 16, STEPS, RATE), &expected, "recomputed");
}

#[test]
fn a_loss_that_is_no_number_ends_the_step_and_the_weights_stay() {
    let mut pipeline = builder(BOTH, ("1F1B", 1), 2, 4).on_non_finite(OnNonFinite::Error).build().unwrap();
    let before = weights(&mut pipeline);
    // This rate makes the weights infinite, so that the next loss is NaN.
    pipeline.step(batch(8), f64::from(f32::MAX)).unwrap();
    let error = pipeline.step(batch(8), RATE).unwrap_err().to_string();
    assert!(error.contains("the loss is NaN") && error.contains("stage 1"), "{error}");
    assert_ne!(weights(&mut pipeline), before);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_number_of_microbatches_and_samples_trains_as_the_plain_loop_does(
        ranks in 1usize..8, microbatches in 1usize..7, samples in 1usize..12, schedule in 0usize..4,
        embedding in proptest::bool::ANY, head in proptest::bool::ANY, tied in proptest::bool::ANY
    ) {
        let schedule = match SCHEDULES[schedule] {
            // It needs a multiple of the ranks.
            ("Interleaved1F1B", _) => SCHEDULES[0],
            schedule => schedule,
        };
        let tied = tied && embedding && head;
        let parallel = Parallel { embedding, head, tied };
        let count = microbatches.min(samples);
        let (each, more) = (samples / count, samples % count);
        let sizes: Vec<usize> = (0..count).map(|i| each + usize::from(i < more)).collect();
        let built = builder(parallel, schedule, ranks, microbatches).clip_norm(CLIP).build();
        if let Ok(mut pipeline) = built {
            let model = if tied { Plain::tied() } else { Plain::new() };
            let expected = plain_of(model, &sizes, STEPS, RATE, CLIP, SgdConfig::new().init());
            let place = format!("{parallel:?}, {schedule:?}, {ranks} ranks, {samples} samples in {microbatches}");
            assert_close(&trained(&mut pipeline, samples, STEPS, RATE), &expected, &place);
        }
    }
}
