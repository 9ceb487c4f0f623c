//! Layers of a list are replaced one by one, as a plain loop replaces them.

use super::{LAYERS, MICROBATCHES, WIDTH, builder, expected, linear, pipeline_weights, step};
use burn::nn::{LayerNorm, Linear};
use burn::tensor::{Tensor, activation::tanh};
use burn_pipeline::Builder;
use burn_pipeline::cost::Partition;
use burn_pipeline::layers::{Layer, LayerContext, Model, Sequential};
use burn_pipeline::schedule::all;
use burn_pipeline::train::PipelineError;

/// The model of the stages, its head of three classes included, as a list.
fn model() -> Model {
    let body = |at: &LayerContext| linear(at.layer, WIDTH, &at.device);
    let forward = |own: &Linear, x: Tensor<2>| x.clone() + tanh(own.forward(x));
    Sequential::new()
        .repeat(LAYERS, Layer::new("layers", body, forward))
        .then(Layer::new("head", |at| linear(103, 3, &at.device), Linear::forward))
        .loss(|y: Tensor<2>, wanted: Tensor<2>| (y - wanted).square().mean())
}

#[test]
fn a_layer_that_is_replaced_between_steps_trains_as_in_a_plain_loop() {
    let expected = expected(MICROBATCHES);
    for schedule in all().into_iter().filter(|schedule| schedule.info().name != "ForwardOnly") {
        let name = schedule.info().name;
        assert!(replaced_mid_run(builder(name, 3).layers(model())) == expected, "{name}");
    }
    // The head alone on the last of four stages.
    let cut = Partition::from_boundaries(LAYERS + 1, &[3, 5, 8]).unwrap();
    for name in ["Interleaved1F1B", "ZBVZeroBubble"] {
        assert!(replaced_mid_run(builder(name, 3).layers(model()).cut(cut.clone())) == expected, "{name}, uneven");
    }
}

fn replaced_mid_run(builder: Builder) -> (Vec<f64>, Vec<Vec<f32>>) {
    let mut pipeline = builder.build().unwrap();
    let mut losses: Vec<f64> = (0..2).map(|number| step(&mut pipeline, number, 3)).collect();
    let last = |_: Linear, at: &LayerContext| {
        assert_eq!((at.layer, at.position), (LAYERS - 1, LAYERS - 1));
        linear(50, WIDTH, &at.device)
    };
    pipeline.replace_layer(LAYERS - 1, last).unwrap();
    pipeline.replace_layer(LAYERS, |_: Linear, at: &LayerContext| linear(51, 5, &at.device)).unwrap();
    losses.extend((2..4).map(|number| step(&mut pipeline, number, 5)));
    (losses, pipeline_weights(&mut pipeline))
}

#[test]
fn a_layer_that_is_not_there_or_of_another_type_is_refused() {
    let mut pipeline = builder("1F1B", 3).layers(model()).build().unwrap();
    let before = pipeline_weights(&mut pipeline);
    let absent = pipeline.replace_layer(LAYERS + 1, |own: Linear, _| own).unwrap_err();
    assert!(matches!(absent, PipelineError::NoSuchLayer { layer: 9, .. }), "{absent}");
    let other = pipeline.replace_layer(2, |own: LayerNorm, _| own).unwrap_err();
    assert!(matches!(other, PipelineError::NoSuchLayer { layer: 2, .. }), "{other}");
    // Stages of one's own have no layers.
    let staged = builder("1F1B", 3).build().unwrap().replace_layer(2, |own: Linear, _| own).unwrap_err();
    assert!(matches!(staged, PipelineError::NoSuchLayer { layer: 2, .. }), "{staged}");
    assert!(pipeline_weights(&mut pipeline) == before);
    step(&mut pipeline, 0, 3);
}
