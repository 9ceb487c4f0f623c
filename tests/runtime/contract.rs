//! The loss contract: however a batch is cut, and however many batches are accumulated, loss, gradients and weights
//! are those of one loss over all samples. An evaluation changes nothing.

#![allow(clippy::single_range_in_vec_init, reason = "a list of ranges may hold one")]

use crate::cases::{noise, read, sizes};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams};
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Accumulation, Batch, Loss, Reduction, StageBox};
use burn_pipeline::train::{Builder, Pipeline, StageContext};
use pipeline_tests::mlp::{self, Mlp, WIDTH};
use pipeline_tests::reference::{Reference, whole};
use std::ops::Range;

type Output = (Tensor<2>, Tensor<2, Int>);

/// Samples with targets, and a flag for each target element that counts.
pub(crate) struct Data {
    x: Tensor<2>,
    ids: Tensor<2, Int>,
    target: Tensor<2>,
    counts: Tensor<2>,
}

impl Data {
    pub(crate) fn new(samples: usize) -> Self {
        let device = Device::flex();
        let rows = |numbers: Vec<f32>| Tensor::<1>::from_floats(&*numbers, &device).reshape([samples, WIDTH]);
        // The first i mod (WIDTH + 1) elements of sample i count: in some samples, none.
        let counts = (0..samples).flat_map(|i| (0..WIDTH).map(move |j| if j < i % (WIDTH + 1) { 1.0 } else { 0.0 }));
        let ids = Tensor::<1, Int>::arange(0..samples as i64, &device).remainder_scalar(3).reshape([samples, 1]);
        let (x, target) = (rows(noise(11, samples * WIDTH)), rows(noise(12, samples * WIDTH)));
        Self { x, ids, target, counts: rows(counts.collect()) }
    }

    pub(crate) fn batch(&self, samples: Range<usize>) -> Batch {
        let (x, ids) = (self.x.clone().slice([samples.clone()]), self.ids.clone().slice([samples.clone()]));
        let target = self.target.clone().slice([samples.clone()]);
        Batch::new((x, ids)).target((target, self.counts.clone().slice([samples])))
    }

    /// The plain loss of these samples, before the divisions of the loss contract.
    pub(crate) fn loss(&self, model: &Mlp, samples: Range<usize>, reduction: Reduction) -> Tensor<1> {
        let x = self.x.clone().slice([samples.clone()]).autodiff();
        let ids = self.ids.clone().slice([samples.clone()]).autodiff();
        let target = self.target.clone().slice([samples.clone()]).autodiff();
        let (y, _) = burn_pipeline::stage::Stage::forward(model, (x, ids), ());
        elements(y, target, self.counts.clone().slice([samples]).autodiff(), reduction)
    }

    pub(crate) fn weight(&self, samples: Range<usize>) -> f64 {
        self.counts.clone().slice([samples]).sum().into_scalar::<f32>() as f64
    }
}

fn elements(y: Tensor<2>, target: Tensor<2>, counts: Tensor<2>, reduction: Reduction) -> Tensor<1> {
    let squares = (y - target).square();
    match reduction {
        Reduction::Mean => squares.mean(),
        Reduction::Sum => squares.sum(),
        Reduction::Weighted => (squares * counts).sum(),
    }
}

fn stage(reduction: Reduction) -> impl Fn(&StageContext) -> StageBox + Send + Sync + 'static {
    move |at| {
        let part = mlp::part(at);
        if !at.is_last() {
            return StageBox::new(part);
        }
        StageBox::with_loss(part, move |(y, _): Output, (target, counts): (Tensor<2>, Tensor<2>)| {
            let weight = counts.clone().sum();
            let value = elements(y, target, counts, reduction);
            if reduction == Reduction::Weighted { Loss::weighted(value, weight) } else { value.into() }
        })
    }
}

pub(crate) fn builder(schedule: &str, ranks: usize, microbatches: usize, reduction: Reduction) -> Builder {
    let chunks = if schedule == "ZBVZeroBubble" { 2 } else { 1 };
    let size = Size::new(ranks, microbatches).with_chunks(chunks);
    Pipeline::builder()
        .schedule(schedule, size)
        .devices(vec![Device::flex()])
        .reduction(reduction)
        .accumulation(Accumulation::Ordered)
        .stages(stage(reduction))
        .optimizer(|| AdamWConfig::new().init())
}

fn gradients(pipeline: &mut Pipeline) -> Vec<Vec<f32>> {
    let gradients = pipeline.take_gradients().unwrap();
    gradients.iter().flatten().map(|g| g.as_ref().map(read).unwrap_or_default()).collect()
}

fn weights(pipeline: &mut Pipeline) -> Vec<Vec<f32>> {
    pipeline.weights().unwrap().iter().flatten().map(read).collect()
}

/// The gradients of a sum of losses, added in order, times a factor.
fn plain(model: &Mlp, losses: impl Iterator<Item = Tensor<1>>, factor: f64) -> Vec<Vec<f32>> {
    struct Rows<'a>(&'a GradientsParams, f64, Vec<Vec<f32>>);

    impl ModuleVisitor for Rows<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = self.0.get::<D>(param.id);
            let gradient = gradient.map(|g| if self.1 == 1.0 { g } else { g.mul_scalar(self.1) });
            self.2.push(gradient.map(|g| g.into_data().iter::<f32>().collect()).unwrap_or_default());
        }
    }

    let mut sum = GradientsAccumulator::new();
    losses.for_each(|loss| sum.accumulate(model, GradientsParams::from_grads(loss.backward(), model)));
    let sum = sum.grads();
    let mut rows = Rows(&sum, factor, Vec::new());
    model.visit(&mut rows);
    rows.2
}

/// The largest difference, relative to the largest number.
fn distance(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    let largest = |numbers: &mut dyn Iterator<Item = f32>| numbers.fold(0.0f32, |max, x| max.max(x.abs()));
    let differences = &mut a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| a - b);
    largest(differences) / largest(&mut b.iter().flatten().copied())
}

/// Batches as lists of sample ranges, each cut into at most `microbatches` pieces.
pub(crate) fn pieces(batches: &[Range<usize>], microbatches: usize) -> Vec<Range<usize>> {
    let cut = |batch: &Range<usize>| {
        let mut start = batch.start;
        let sizes = sizes(batch.len(), microbatches.min(batch.len()));
        sizes
            .into_iter()
            .map(move |size| {
                start += size;
                start - size..start
            })
            .collect::<Vec<_>>()
    };
    batches.iter().flat_map(cut).collect()
}

const BATCHES: [&[Range<usize>]; 4] = [&[0..8, 8..16], &[0..7, 7..9, 9..20], &[0..3, 3..14], &[0..1, 1..10, 10..13]];

#[test]
fn accumulated_batches_equal_one_large_batch() {
    for reduction in [Reduction::Mean, Reduction::Sum, Reduction::Weighted] {
        for batches in BATCHES {
            let samples = batches.last().unwrap().end;
            let (data, model) = (Data::new(samples), mlp::part(&whole()));
            let pieces = pieces(batches, 4);
            let total = data.weight(0..samples);
            let (factor, one) = match reduction {
                Reduction::Mean => (pieces[0].len() as f64 / samples as f64, 1.0),
                Reduction::Sum => (1.0, 1.0),
                Reduction::Weighted => (1.0 / total, 1.0 / total),
            };
            let seeded = |piece: &Range<usize>| {
                let loss = data.loss(&model, piece.clone(), reduction);
                let share = piece.len() as f64 / pieces[0].len() as f64;
                if reduction == Reduction::Mean && share != 1.0 { loss.mul_scalar(share) } else { loss }
            };
            let expected = plain(&model, pieces.iter().map(seeded), factor);
            let large = plain(&model, std::iter::once(data.loss(&model, 0..samples, reduction)), one);
            let loss = data.loss(&model, 0..samples, reduction).into_scalar::<f32>() as f64 * one;
            for (schedule, ranks) in [("GPipe", 1), ("1F1B", 2), ("1F1B", 3), ("ZBVZeroBubble", 2), ("DualPipe", 2)] {
                let what = format!("{reduction:?}, {batches:?}, {schedule} on {ranks}");
                let mut pipeline = builder(schedule, ranks, 4, reduction).build().unwrap();
                for batch in batches {
                    pipeline.accumulate(data.batch(batch.clone())).unwrap();
                }
                let gathered = gradients(&mut pipeline);
                assert_eq!(gathered, expected, "{what}");
                let off = distance(&gathered, &large);
                assert!(off < 1e-5, "{what}: differs from the large batch by {off}");
                // The same through a step: its loss is the large batch's.
                let (last, before) = batches.split_last().unwrap();
                before.iter().for_each(|batch| drop(pipeline.accumulate(data.batch(batch.clone())).unwrap()));
                let report = pipeline.step(data.batch(last.clone()), 1e-3).unwrap();
                assert!((report.loss - loss).abs() < 1e-5 * loss, "{what}: {} is not {loss}", report.loss);
            }
        }
    }
}

#[test]
fn uneven_microbatches_with_a_mean_loss_equal_the_whole_batch_where_equal_weights_do_not() {
    let (data, model) = (Data::new(7), mlp::part(&whole()));
    let large = plain(&model, std::iter::once(data.loss(&model, 0..7, Reduction::Mean)), 1.0);
    let pieces = pieces(&[0..7], 3);
    let equal = plain(&model, pieces.iter().map(|p| data.loss(&model, p.clone(), Reduction::Mean)), 1.0 / 3.0);
    assert!(distance(&equal, &large) > 1e-3, "the data does not tell the two apart");
    for schedule in ["GPipe", "1F1B", "ZBVZeroBubble"] {
        let mut pipeline = builder(schedule, 2, 3, Reduction::Mean).build().unwrap();
        pipeline.accumulate(data.batch(0..7)).unwrap();
        let off = distance(&gradients(&mut pipeline), &large);
        assert!(off < 1e-5, "{schedule}: differs by {off}");
    }
}

#[test]
fn a_batch_of_padding_alone_moves_nothing() {
    let data = Data::new(WIDTH + 2);
    // No element of samples 0 and WIDTH + 1 counts.
    let mut pipeline = builder("1F1B", 2, 2, Reduction::Weighted).build().unwrap();
    pipeline.accumulate(data.batch(0..1)).unwrap();
    let report = pipeline.accumulate(data.batch(WIDTH + 1..WIDTH + 2)).unwrap();
    assert_eq!(report.loss, 0.0);
    assert!(gradients(&mut pipeline).iter().flatten().all(|&g| g == 0.0));
}

#[test]
fn clipping_by_the_norm_over_all_ranks_equals_the_plain_loop_bit_for_bit() {
    let data = Data::new(9);
    let pieces = pieces(&[0..9], 4);
    let sizes: Vec<usize> = pieces.iter().map(Range::len).collect();
    for limit in [1e-3, 0.5, 1e3] {
        let mut reference = Reference::new(mlp::part(&whole()));
        let mut pipelines: Vec<Pipeline> = [("GPipe", 1), ("1F1B", 2), ("GPipe", 3), ("1F1B", 4), ("ZBVZeroBubble", 4)]
            .map(|(schedule, ranks)| builder(schedule, ranks, 4, Reduction::Mean).clip_norm(limit).build().unwrap())
            .into();
        for step in 0..3 {
            let loss = |model: &Mlp, i: usize| data.loss(model, pieces[i].clone(), Reduction::Mean);
            let expected = reference.step(&sizes, 1e-2, Some(limit), loss);
            assert!(limit == 0.5 || (expected.norm > limit) == (limit < 0.5), "limit {limit}: norm {}", expected.norm);
            for pipeline in &mut pipelines {
                let report = pipeline.step(data.batch(0..9), 1e-2).unwrap();
                assert_eq!(report.gradient_norm, Some(expected.norm), "limit {limit}, step {step}");
                assert_eq!(weights(pipeline), reference.weights(), "limit {limit}, step {step}");
            }
        }
    }
}

#[test]
fn clipped_gradients_have_the_limit_as_their_norm() {
    let data = Data::new(9);
    let mut pipeline = builder("1F1B", 3, 4, Reduction::Mean).clip_norm(0.01).build().unwrap();
    pipeline.accumulate(data.batch(0..9)).unwrap();
    let squares: f64 = gradients(&mut pipeline).iter().flatten().map(|&g| f64::from(g) * f64::from(g)).sum();
    assert!((squares.sqrt() - 0.01).abs() < 1e-5, "{}", squares.sqrt());
}

#[test]
fn an_evaluation_equals_the_plain_forward_and_leaves_gradients_and_weights_alone() {
    for (schedule, ranks) in
        [("GPipe", 1), ("1F1B", 2), ("1F1B", 4), ("ZBVZeroBubble", 3), ("DualPipe", 2), ("Chimera", 4)]
    {
        for samples in [1, 2, 5, 8] {
            let what = format!("{schedule} on {ranks}, {samples} samples");
            let (data, model) = (Data::new(samples), mlp::part(&whole()));
            let (mut pipeline, mut other) = (
                builder(schedule, ranks, 4, Reduction::Mean).build().unwrap(),
                builder(schedule, ranks, 4, Reduction::Mean).build().unwrap(),
            );
            let before = weights(&mut pipeline);
            pipeline.accumulate(data.batch(0..samples)).unwrap();
            let report = pipeline.eval(data.batch(0..samples)).unwrap();
            let (y, ids) = report.output::<Output>().unwrap();
            let cut = pieces(&[0..samples], 4);
            let forward = |piece: &Range<usize>| {
                let (x, ids) = (data.x.clone().slice([piece.clone()]), data.ids.clone().slice([piece.clone()]));
                burn_pipeline::stage::Stage::forward(&model.valid(), (x, ids), ()).0
            };
            let forward = Tensor::cat(cut.iter().map(forward).collect(), 0);
            assert_eq!(y.into_data(), forward.clone().into_data(), "{what}");
            assert_eq!(ids.into_data(), data.ids.clone().into_data(), "{what}");
            let plain = (forward - data.target.clone()).square().mean().into_scalar::<f32>() as f64;
            assert!((report.loss.unwrap() - plain).abs() <= 1e-6 * plain, "{what}");
            assert_eq!((report.samples, report.microbatches), (samples, samples.min(4)), "{what}");
            assert_eq!(weights(&mut pipeline), before, "{what}");
            other.accumulate(data.batch(0..samples)).unwrap();
            assert_eq!(gradients(&mut pipeline), gradients(&mut other), "{what}");
        }
    }
}

#[test]
fn a_batch_smaller_than_asked_for_gives_fewer_microbatches_and_says_so() {
    for samples in 1..=9 {
        let data = Data::new(samples);
        let mut pipeline = builder("1F1B", 2, 8, Reduction::Mean).build().unwrap();
        let report = pipeline.step(data.batch(0..samples), 1e-2).unwrap();
        assert_eq!((report.samples, report.microbatches), (samples, samples.min(8)));
    }
}
