//! Microbatches of different shapes: sequences whose lengths differ within a step and from step to step train as on
//! one device.

use crate::cases::{noise, read, small_gpt};
use burn::module::Module;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::schedule::{OneFOneB, Schedule, Size};
use burn_pipeline::stage::{Accumulation, Batch, MicrobatchError, SplitBackward};
use burn_pipeline::train::{Pipeline, PipelineError};
use pipeline_examples::gpt::{GptPart, Signal, next_token_loss};
use pipeline_tests::reference::{Reference, whole};
use proptest::prelude::ProptestConfig;
use proptest::{prop_assert_eq, proptest};

/// One microbatch: tokens and the tokens that follow them, `[samples, length]` each.
#[derive(Clone)]
struct Piece {
    tokens: Tensor<2, Int>,
    next: Tensor<2, Int>,
}

impl Piece {
    fn new(seed: u64, (samples, length): (usize, usize)) -> Self {
        let draw = |seed| {
            let tokens: Vec<i32> = noise(seed, samples * length).iter().map(|x| ((x + 1.0) * 8.5) as i32).collect();
            Tensor::<1, Int>::from_ints(&*tokens, &Device::flex()).reshape([samples, length])
        };
        Self { tokens: draw(seed), next: draw(seed + 1000) }
    }

    fn batch(&self) -> Batch {
        Batch::new(Signal::Tokens(self.tokens.clone())).target(self.next.clone())
    }

    fn loss(&self, model: &GptPart) -> Tensor<1> {
        let scores = burn_pipeline::stage::Stage::forward(model, Signal::Tokens(self.tokens.clone().autodiff()), ());
        next_token_loss(scores, self.next.clone().autodiff())
    }
}

fn pieces(step: usize, shapes: &[(usize, usize)]) -> Vec<Piece> {
    shapes.iter().enumerate().map(|(i, &shape)| Piece::new((100 * step + i) as u64, shape)).collect()
}

fn ready(pieces: &[Piece]) -> Batch {
    Batch::from_microbatches(pieces.iter().map(Piece::batch).collect())
}

/// Trains on steps of microbatches of these shapes, and compares loss and weights with the plain loop's.
fn assert_parity(schedule: &str, size: Size, split: SplitBackward, steps: &[Vec<(usize, usize)>]) {
    let builder = Pipeline::builder().schedule(schedule, size).devices(vec![Device::flex()]);
    let builder = builder.stages(|at| small_gpt().stage(at)).optimizer(|| AdamWConfig::new().init());
    let mut pipeline = builder.accumulation(Accumulation::Ordered).split(split).build().unwrap();
    let mut reference = Reference::new(small_gpt().part(&whole()));
    for (step, shapes) in steps.iter().enumerate() {
        let place = format!("{schedule} {size:?}, step {step}: {shapes:?}");
        let pieces = pieces(step, shapes);
        let samples: Vec<usize> = shapes.iter().map(|(samples, _)| *samples).collect();
        let expected = reference.step(&samples, 1e-2, None, |model, i| pieces[i].loss(model));
        let report = pipeline.step(ready(&pieces), 1e-2).unwrap();
        assert_eq!((report.microbatches, report.loss), (shapes.len(), expected.loss), "{place}");
        let weights: Vec<Vec<f32>> = pipeline.weights().unwrap().iter().flatten().map(read).collect();
        assert_eq!(weights, reference.weights(), "{place}");
    }
}

#[test]
fn lengths_that_differ_within_a_step_equal_the_plain_loop_bit_for_bit() {
    let steps = [vec![(2, 3), (1, 6), (3, 1), (2, 5)], vec![(1, 2), (1, 2), (4, 6), (1, 1)], vec![(2, 4); 4]];
    for (schedule, chunks) in [("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2), ("ZBV", 2)] {
        for ranks in 1..=4 {
            let size = Size { ranks, chunks, microbatches: 4 };
            let split = if ranks == 2 { SplitBackward::Auto } else { SplitBackward::Eager };
            assert_parity(schedule, size, split, &steps);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_number_of_microbatches_of_any_shapes_equals_the_plain_loop(
        schedule in 0usize..4,
        ranks in 1usize..=3,
        steps in proptest::collection::vec(proptest::collection::vec((1usize..4, 1usize..=6), 1..6), 1..3),
    ) {
        let (schedule, chunks) = [("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2), ("ZBV", 2)][schedule];
        // A batch that is already cut has its own number of microbatches, whatever the schedule's number is.
        assert_parity(schedule, Size { ranks, chunks, microbatches: 3 }, SplitBackward::Eager, &steps);
    }

    #[test]
    fn a_batch_of_zeros_has_the_first_microbatchs_shape(
        shapes in proptest::collection::vec((1usize..4, 1usize..=6), 1..5), count in 1usize..3, more in 0usize..3,
    ) {
        let cut = ready(&pieces(0, &shapes)).cut(7).unwrap();
        prop_assert_eq!(cut.len(), shapes.len());
        let zeros = cut.zeros(count, more).unwrap();
        prop_assert_eq!((zeros.len(), zeros.size(0)), (count, shapes[0].0 + more));
        let input = zeros.input(0);
        let tokens = input.tensors().next().unwrap();
        prop_assert_eq!(tokens.shape().to_vec(), vec![shapes[0].0 + more, shapes[0].1]);
        prop_assert_eq!(tokens.to_data().unwrap().iter::<i64>().sum::<i64>(), 0);
    }
}

#[test]
fn an_evaluation_gives_the_outputs_of_every_length() {
    let builder = Pipeline::builder().schedule("1F1B", Size::new(2, 2)).devices(vec![Device::flex()]);
    let mut pipeline = builder.stages(|at| small_gpt().stage(at)).build().unwrap();
    let (pieces, model) = (pieces(0, &[(2, 3), (1, 6), (2, 3)]), small_gpt().part(&whole()));
    let report = pipeline.eval(ready(&pieces)).unwrap();
    let expected: f64 =
        pieces.iter().map(|p| p.loss(&model).into_scalar::<f32>() as f64 * p.next.dims()[0] as f64).sum();
    assert!((report.loss.unwrap() - expected / 5.0).abs() < 1e-12);
    let outputs = report.outputs::<Signal>().unwrap();
    for (output, piece) in outputs.into_iter().zip(&pieces) {
        let Signal::Logits(scores) = output else { panic!("the last stage puts out logits") };
        // Without autodiff, as in an evaluation.
        let tokens = Signal::Tokens(piece.tokens.clone());
        let Signal::Logits(plain) = burn_pipeline::stage::Stage::forward(&model.valid(), tokens, ()) else {
            panic!("the last stage puts out logits")
        };
        assert_eq!(scores.into_data(), plain.into_data());
    }
    assert!(report.output::<Signal>().unwrap_err().to_string().contains("read them with `outputs`"));
}

#[test]
fn pieces_that_do_not_fit_each_other_are_refused_and_cost_nothing() {
    let piece = |shape| Piece::new(1, shape);
    let builder = Pipeline::builder().schedule("1F1B", Size::new(2, 2)).devices(vec![Device::flex()]);
    let builder = builder.stages(|at| small_gpt().stage(at)).optimizer(|| AdamWConfig::new().init());
    let mut pipeline = builder.build().unwrap();
    let bare = Batch::new(Signal::Tokens(piece((1, 2)).tokens));
    let error = pipeline.step(Batch::from_microbatches(vec![piece((1, 2)).batch(), bare]), 0.1).unwrap_err();
    let expected = MicrobatchError::SomeTargets { targets: 1, pieces: 2 };
    assert!(matches!(&error, PipelineError::Batch(error) if *error == expected), "{error}");
    let uneven = Batch::new(Signal::Tokens(piece((1, 2)).tokens)).target(piece((2, 2)).next);
    let error = pipeline.step(Batch::from_microbatches(vec![piece((1, 2)).batch(), uneven]), 0.1).unwrap_err();
    assert!(matches!(&error, PipelineError::Batch(MicrobatchError::SampleCount { .. })), "{error}");
    let float = Batch::new(Signal::Hidden(Tensor::zeros([1, 2, 8], &Device::flex())))
        .target(Tensor::<2>::zeros([1, 2], &Device::flex()));
    let error = pipeline.step(Batch::from_microbatches(vec![piece((1, 2)).batch(), float]), 0.1).unwrap_err();
    assert!(matches!(&error, PipelineError::Refused { .. }), "{error}");
    assert!(matches!(pipeline.step(Batch::from_microbatches(vec![]), 0.1), Err(PipelineError::Batch(_))));
    let params = small_gpt().part(&whole()).num_params();
    let report = pipeline.step(ready(&pieces(0, &[(1, 6), (2, 3)])), 0.1).unwrap();
    assert_eq!(report.weight_bytes.iter().sum::<usize>(), params * 4);
}

#[test]
fn a_batch_that_does_not_fit_a_given_plan_is_told_what_the_plan_needs_over_all_replicas() {
    for (replicas, all, each) in [(1, 4, ""), (2, 8, " on each of 2 data-parallel replicas")] {
        let plan = OneFOneB.build(Size::new(2, 4)).unwrap();
        let builder = Pipeline::builder().plan(plan).devices(vec![Device::flex()]).data_parallel(replicas);
        let builder = builder.stages(|at| small_gpt().stage(at)).optimizer(|| AdamWConfig::new().init());
        let mut pipeline = builder.build().unwrap();
        let whole = |samples| Piece::new(1, (samples, 4)).batch();
        let given = |count| ready(&pieces(1, &vec![(2, 4); count]));
        for (batch, wanted) in [(whole(all - 2), all - 2), (given(all - 1), all - 1), (given(all + 2), all + 2)] {
            let error = pipeline.step(batch, 1e-2).unwrap_err().to_string();
            let says = format!("the plan runs 4 microbatches{each}, but the batch has {wanted}; ");
            let asks = format!("at least {all} samples or, by `Batch::from_microbatches`, of {all} microbatches");
            assert!(error.contains(&says) && error.contains(&asks), "{replicas} replicas: {error}");
        }
        // What it asks for is what the plan takes.
        for batch in [whole(all), whole(all + 3), given(all)] {
            pipeline.step(batch, 1e-2).unwrap();
        }
    }
}
