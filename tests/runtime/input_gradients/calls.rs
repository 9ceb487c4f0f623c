//! The factor of the gradients is that of the report's loss: means, sums and weights, several batches a step, skips.

use super::{Contract, Data, Gradients, LAYERS, MICROBATCHES, RATE, SAMPLES, WIDTH, builder, plain, stack, whole};
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use burn_pipeline::stage::{Loss, Reduction, Stage};
use burn_pipeline::train::{GradientError, OnNonFinite};
use burn_pipeline::{Batch, Builder, Pipeline, Size, StageBox, StageContext};
use pipeline_tests::device::device;

fn reduced(reduction: Reduction) -> Builder {
    let builder = builder("1F1B", Size::new(LAYERS, MICROBATCHES), &[]).reduction(reduction);
    builder.stages(move |at: &StageContext| {
        let part = stack(at.layers(LAYERS), &[0, 3], &at.device);
        match at.is_last() {
            false => StageBox::new(part),
            true => StageBox::with_loss(part, move |y: Tensor<2>, wanted: Tensor<2>| {
                let squares = (y - wanted).square();
                match reduction {
                    Reduction::Mean => Loss::from(squares.mean()),
                    Reduction::Sum => Loss::from(squares.mean()),
                    // Each element counts one half.
                    Reduction::Weighted => Loss::weighted(squares.clone().mean(), squares.ones_like().sum() / 2.0),
                }
            }),
        }
    })
}

#[test]
fn sums_and_weighted_sums_scale_as_their_losses_do() {
    let data = Data::new(0);
    let one: fn(usize, usize) -> f64 = |_, _| 1.0;
    for (reduction, contract) in [
        (Reduction::Mean, Contract::mean()),
        (Reduction::Sum, Contract { seed: one, factor: 1.0 }),
        (Reduction::Weighted, Contract { seed: one, factor: 2.0 / (SAMPLES * WIDTH) as f64 }),
    ] {
        let mut pipeline = reduced(reduction).build().unwrap();
        let report = pipeline.step(data.batch(), RATE).unwrap();
        let expected = Gradients { loss: report.loss, ..plain(&whole(), &data, &contract) };
        assert_eq!(Gradients::of(&report), expected, "{reduction:?}");
    }
}

#[test]
fn an_accumulated_batch_has_the_gradients_of_its_own_loss_and_a_step_those_of_all() {
    let mut pipeline = builder("1F1B", Size::new(LAYERS, MICROBATCHES), &[1]).build().unwrap();
    let (first, second) = (Data::new(0), Data::new(1));
    let report = pipeline.accumulate(first.batch()).unwrap();
    assert_eq!(Gradients::of(&report), plain(&whole(), &first, &Contract::mean()));
    // The step's loss is the mean over the samples of both batches.
    let report = pipeline.step(second.batch(), RATE).unwrap();
    let half = Contract { factor: 2.0 / (2 * SAMPLES) as f64, ..Contract::mean() };
    let expected = Gradients { loss: report.loss, ..plain(&whole(), &second, &half) };
    assert_eq!(Gradients::of(&report), expected);
}

#[test]
fn a_frozen_model_gives_them_in_every_call_and_changes_nothing() {
    let mut pipeline = builder("1F1B", Size::new(LAYERS, MICROBATCHES), &[]).build().unwrap();
    for step in 0..3 {
        let data = Data::new(step);
        let expected = plain(&whole(), &data, &Contract::mean());
        assert_eq!(Gradients::of(&pipeline.step(data.batch(), 0.0).unwrap()), expected);
        assert_eq!(Gradients::of(&pipeline.accumulate(data.batch()).unwrap()), expected);
        assert!(pipeline.take_gradients().unwrap().into_iter().flatten().all(|gradient| gradient.is_none()));
    }
}

#[test]
fn a_skipped_step_returns_what_the_plain_loop_has() {
    let mut data = Data::new(0);
    data.x = data.x.slice_assign([3..4, 0..1], Tensor::from_floats([[f32::NAN]], &device()));
    let builder = builder("1F1B", Size::new(LAYERS, MICROBATCHES), &[1]).on_non_finite(OnNonFinite::Skip);
    let report = builder.build().unwrap().step(data.batch(), RATE).unwrap();
    assert!(report.skipped.is_some());
    let (got, expected) = (Gradients::of(&report), plain(&whole(), &data, &Contract::mean()));
    let bits = |of: &Gradients| {
        let all = [&of.input, &of.shift, &of.prompt].map(|gradients| gradients.clone());
        all.concat().into_iter().map(|x| if x.is_nan() { None } else { Some(x.to_bits()) }).collect::<Vec<_>>()
    };
    assert_eq!(bits(&got), bits(&expected));
    // Other samples do not depend on the odd one.
    assert_eq!(got.input.iter().filter(|x| x.is_nan()).count(), WIDTH);
}

#[test]
fn clipping_leaves_them_alone() {
    let data = Data::new(0);
    let mut pipeline = builder("1F1B", Size::new(LAYERS, MICROBATCHES), &[0, 1]).clip_norm(1e-3).build().unwrap();
    let report = pipeline.step(data.batch(), RATE).unwrap();
    assert!(report.gradient_norm.unwrap() > 1e-3);
    assert_eq!(Gradients::of(&report), plain(&whole(), &data, &Contract::mean()));
}

/// The mean of each sample, times a number.
#[derive(Module, Debug)]
struct Mean {
    by: Param<Tensor<1>>,
}

impl Stage for Mean {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        x.mean_dim(1) * self.by.val().unsqueeze()
    }
}

#[test]
fn microbatches_that_are_given_are_joined_if_they_differ_in_samples_alone() {
    let builder = Pipeline::builder().schedule("1F1B", Size::new(1, 2)).devices(vec![device()]).input_gradients(true);
    let builder = builder.reduction(Reduction::Sum).stages(|at: &StageContext| {
        let by = Param::from_tensor(Tensor::ones([1], &at.device).mul_scalar(6.0));
        StageBox::with_loss(Mean { by }, |y: Tensor<2>, wanted: Tensor<2>| (y * wanted).sum())
    });
    let mut pipeline = builder.build().unwrap();
    let ones = |samples: usize, width: usize| Tensor::<2>::ones([samples, width], &device());
    let mut run = |shapes: [(usize, usize); 2]| {
        let part = |(samples, width)| Batch::new(ones(samples, width)).target(ones(samples, 1));
        pipeline.accumulate(Batch::from_microbatches(shapes.map(part).to_vec())).unwrap()
    };
    let got: Tensor<2> = run([(2, 3), (1, 3)]).input_gradient().unwrap();
    assert_eq!(got.into_data(), ones(3, 3).mul_scalar(2.0).into_data());
    let refused = run([(2, 3), (1, 2)]).input_gradient::<Tensor<2>>().unwrap_err();
    assert_eq!(refused, GradientError::Unlike { what: "the input".to_owned(), tensor: 0 });
}
