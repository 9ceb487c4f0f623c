//! Modules that do not fit are refused, and the pipeline is as before.

use super::{Part, WIDTH, builder, data, linear, part, plain_step, step};
use burn::module::Param;
use burn::tensor::Device;
use burn_pipeline::stage::{ReplaceError, SplitBackward};
use burn_pipeline::train::{AutoError, AutoOptions, AutoPipeline, Decision, PipelineError, SharedParameter};
use burn_pipeline::{Batch, Size};
use pipeline_tests::reference::{Reference, whole};

fn refusal(result: Result<(), PipelineError>) -> ReplaceError {
    match result.unwrap_err() {
        PipelineError::Replace { source, .. } => source,
        other => panic!("{other}"),
    }
}

#[test]
fn what_does_not_fit_is_refused_and_training_goes_on_as_before() {
    for (name, split) in [("1F1B", SplitBackward::Eager), ("DualPipe", SplitBackward::Captured)] {
        let mut pipeline = builder(name, 3).split(split).build().unwrap();
        let mut reference = Reference::new(part(&whole(), 3));
        assert_eq!(step(&mut pipeline, 0, 3), plain_step(&mut reference, 0, 3));

        let other = pipeline.module::<Part>(1).unwrap().layers[0].clone();
        let stolen = other.clone();
        let error = refusal(pipeline.replace_module(0, move |mut part: Part, _| {
            part.layers[0] = stolen.clone();
            part
        }));
        assert_eq!(error, ReplaceError::Elsewhere { path: "layers.0.weight".to_owned() }, "{name}");

        let error = refusal(pipeline.replace_module(1, |mut part: Part, _| {
            let (id, value, _) = part.layers[0].weight.clone().consume();
            part.layers[0].weight = Param::from_mapped_value(id, value.repeat_dim(0, 2), Default::default());
            part
        }));
        assert!(matches!(&error, ReplaceError::Spec { path, .. } if path == "layers.0.weight"), "{error}");

        let error = refusal(
            pipeline.replace_module(1, |part: Part, _| Part { head: Some(linear(1, 3, &Device::flex())), ..part }),
        );
        assert!(matches!(&error, ReplaceError::Device { path, .. } if path == "head.weight"), "{error}");

        let error = refusal(pipeline.replace_module(0, |_: Part, _| panic!("no such head")));
        assert_eq!(error, ReplaceError::Panic { message: "no such head".to_owned() });

        let error = pipeline.replace_module(2, |part: Part, _| part).unwrap_err();
        assert!(matches!(error, PipelineError::NoSuchModule { stage: 2, .. }), "{error}");
        let error = pipeline.replace_module(0, |mlp: pipeline_tests::mlp::Mlp, _| mlp).unwrap_err();
        assert!(matches!(error, PipelineError::NoSuchModule { stage: 0, .. }), "{error}");

        assert_eq!(step(&mut pipeline, 1, 3), plain_step(&mut reference, 1, 3), "{name}");
        let (x, wanted) = data(2, 3);
        pipeline.accumulate(Batch::new(x).target(wanted)).unwrap();
        let error = refusal(pipeline.replace_module(0, |part: Part, _| part));
        assert_eq!(error, ReplaceError::GradientsWait);
        pipeline.take_gradients().unwrap();
        pipeline.replace_module(0, |part: Part, _| part).unwrap();
        assert_eq!(step(&mut pipeline, 2, 3), plain_step(&mut reference, 2, 3), "{name}");
    }
}

#[test]
fn copies_that_would_be_unlike_shards_and_shared_parameters_are_refused() {
    let mut pipeline = builder("DualPipe", 3).build().unwrap();
    let error =
        refusal(pipeline.replace_module(0, |part: Part, at| Part {
            head: (at.rank == 0).then(|| linear(1, 3, &at.device)),
            ..part
        }));
    assert!(matches!(error, ReplaceError::Unlike { .. }), "{error}");

    let mut sharded = builder("1F1B", 3).data_parallel(2).sharded(true).build().unwrap();
    assert_eq!(refusal(sharded.replace_module(0, |part: Part, _| part)), ReplaceError::Sharded);

    let shared = SharedParameter::new("layer").at("layers.0.weight");
    let mut shared = builder("1F1B", 3).share(shared).build().unwrap();
    let error = refusal(shared.replace_module(0, |mut part: Part, at| {
        part.layers[0] = linear(9, WIDTH, &at.device);
        part
    }));
    assert_eq!(error, ReplaceError::Shared { path: "layers.0.weight".to_owned() });
    let before = step(&mut shared, 0, 3);
    shared
        .replace_module(0, |mut part: Part, at| {
            part.layers[1] = linear(9, WIDTH, &at.device);
            part
        })
        .unwrap();
    assert!(step(&mut shared, 0, 3).is_finite() && before.is_finite());
}

#[test]
fn a_schedule_is_no_longer_chosen_as_a_new_pipeline_would_have_the_old_module() {
    // A switch would be certain.
    let options = AutoOptions { warm_up: 0, measured: 1, gain: -1.0, trial: 0, ..AutoOptions::default() };
    let mut auto = AutoPipeline::new(builder("1F1B", 3), Size::new(2, 3), options).unwrap();
    auto.pipeline().replace_module(0, |part: Part, _| part).unwrap();
    let (x, wanted) = data(0, 3);
    auto.step(Batch::new(x).target(wanted), 0.1).unwrap();
    assert!(matches!(auto.decision(), Decision::Failed(AutoError::Replaced)), "{:?}", auto.decision());
}
