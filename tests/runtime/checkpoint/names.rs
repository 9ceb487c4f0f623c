//! Names, shapes, element types and optimizers that do not fit are refused before anything changes.

use super::{Cut, RATE, SAMPLES, weights};
use crate::cases::{Case, Text, small_gpt};
use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::store::SafetensorsStore;
use burn::tensor::{Device, Tensor};
use burn_pipeline::schedule::{GPipe, Size};
use burn_pipeline::stage::{Names, StageBox};
use burn_pipeline::train::{
    BuildError, Builder, Checkpoint, CheckpointError, Checkpoints, Pipeline, Pretrained, StageContext,
};
use pipeline_tests::layers::Layer;
use tempfile::{TempDir, tempdir};

const CUT: Cut = Cut { schedule: "1F1B", ranks: 2, chunks: 1 };

fn saved(pipeline: &mut Pipeline, folder: &TempDir) -> Checkpoint {
    let checkpoints = Checkpoints::new(folder.path());
    pipeline.step(Text::new(SAMPLES).batch(), RATE).unwrap();
    pipeline.save(&checkpoints, &()).unwrap();
    checkpoints.latest().unwrap()
}

/// Asserts that loading is refused without changes; returns the message.
fn refused(builder: Builder, checkpoint: &Checkpoint) -> String {
    let mut pipeline = builder.build().unwrap();
    let before = weights(&mut pipeline);
    let error = pipeline.load(checkpoint).unwrap_err();
    assert_eq!(weights(&mut pipeline), before, "{error}");
    error.to_string()
}

fn layers(stage: impl Fn(StageBox, &StageContext) -> StageBox + Send + Sync + 'static) -> Builder {
    let builder = Pipeline::builder().schedule(GPipe, Size::new(2, 1)).devices(vec![Device::flex()]);
    builder.stages(move |at| {
        let layer = Layer { linear: LinearConfig::new(3, 3).init(&at.device) };
        stage(StageBox::new(layer), at)
    })
}

#[test]
fn stages_that_claim_one_name_take_no_pretrained_weights() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let named = |right: bool| {
        layers(move |stage, at| {
            let index = if right { at.index } else { 0 };
            stage.named(Names::default().renamed(move |path| format!("layers.{index}.{path}")))
        })
    };
    named(true).build().unwrap().export(&path).unwrap();
    let stored = Pretrained::new(move || SafetensorsStore::from_file(&path));
    named(true).build().unwrap().load_pretrained(&stored).unwrap();

    // Layer 1 would load the values of layer 0, and those of layer 1 would be unused.
    let error = named(false).build().unwrap_err();
    assert!(matches!(error, BuildError::SameName { first: 0, second: 1, .. }), "{error}");
    // If no stage has names, a pipeline is built, but cannot load by name.
    let mut wrong = layers(|stage, _| stage).build().unwrap();
    let before = weights(&mut wrong);
    let error = wrong.load_pretrained(&stored.ignored(|_| true)).unwrap_err();
    assert!(matches!(error, CheckpointError::SameName { first: 0, second: 1, .. }), "{error}");
    assert_eq!(weights(&mut wrong), before);
}

#[test]
fn a_list_of_layers_in_which_no_stage_has_a_parameter_is_refused() {
    let declared = |list: &'static str| {
        layers(move |stage, at| {
            let index = at.index;
            let renamed = move |name: &str| format!("layers.{index}.{name}");
            stage.named(Names::default().layers_from(list, at.index).renamed(renamed))
        })
    };
    let error = declared("layer").build().unwrap_err();
    assert!(matches!(&error, BuildError::EmptyList { list, .. } if list == "layer"), "{error}");
    assert!(error.to_string().contains("`linear.bias`, `linear.weight`"), "{error}");
    // It takes only one stage with a parameter; the others may hold none of these layers.
    let blocks = CUT.builder().stages(|at| small_gpt().stage(at));
    blocks.build().unwrap();
}

#[test]
fn two_stages_that_claim_one_name_cannot_be_saved_and_are_told_why() {
    let parent = tempdir().unwrap();
    let folder = parent.path().join("checkpoints");
    let mut pipeline = layers(|stage, _| stage).build().unwrap();
    let error = pipeline.save(&Checkpoints::new(&folder), &()).unwrap_err();
    let says = "stages 0 and 1 both claim a parameter named `linear.weight`; \
                set the position of their layers in the model with `StageBox::named`";
    assert_eq!(error.to_string(), says);
    assert!(matches!(pipeline.export(folder.join("model")), Err(CheckpointError::SameName { .. })));
    assert!(!folder.exists());
    // Once every stage names its parameters, it can.
    let mut pipeline = layers(|stage, at| {
        let index = at.index;
        stage.named(Names::default().renamed(move |path| format!("layers.{index}.{path}")))
    });
    let mut pipeline = pipeline_of(&mut pipeline);
    pipeline.save(&Checkpoints::new(&folder), &()).unwrap();
    let names: Vec<String> = pipeline.named_weights().unwrap().concat().into_iter().flat_map(|w| w.names).collect();
    assert_eq!(names[..2], ["layers.0.linear.weight", "layers.0.linear.bias"]);
    assert_eq!(names[2..], ["layers.1.linear.weight", "layers.1.linear.bias"]);
}

fn pipeline_of(builder: &mut Builder) -> Pipeline {
    builder.clone().build().unwrap()
}

/// A model that holds one weight in two places.
#[derive(Module, Debug)]
struct Tied {
    first: Param<Tensor<2>>,
    second: Param<Tensor<2>>,
}

#[test]
fn copies_of_a_weight_that_a_model_holds_once_must_be_equal() {
    let folder = tempdir().unwrap();
    let saved = |value: fn(usize) -> f32| {
        let stages = move |at: &StageContext| {
            let weight = Tensor::full([3, 3], value(at.index), &at.device);
            let names = ["first", "second"];
            let name = names[at.index];
            let layer = Layer { linear: Linear { weight: Param::from_tensor(weight), bias: None } };
            StageBox::new(layer).named(Names::default().renamed(move |_| name.to_owned()))
        };
        let builder = Pipeline::builder().schedule(GPipe, Size::new(2, 1)).devices(vec![Device::flex()]);
        let checkpoints = Checkpoints::new(folder.path());
        builder.stages(stages).build().unwrap().save(&checkpoints, &()).unwrap();
        checkpoints.latest().unwrap()
    };
    let tied = || {
        let first = Param::from_tensor(Tensor::<2>::zeros([3, 3], &Device::flex()));
        Tied { second: first.clone(), first }
    };
    let loaded = saved(|_| 2.5).load_module(tied(), &Names::default()).unwrap();
    assert!(loaded.second.val().into_data().iter::<f32>().all(|x| x == 2.5));
    let error = saved(|stage| stage as f32).load_module(tied(), &Names::default()).unwrap_err();
    let says = "the model holds `first` and `second` as one parameter, but they were saved with different values";
    assert!(error.to_string().starts_with(says), "{error}");
}

#[test]
fn a_larger_model_lacks_parameters_and_a_smaller_one_has_too_few() {
    let folder = tempdir().unwrap();
    let checkpoint = saved(&mut CUT.pipeline(), &folder);
    let larger = refused(CUT.builder().stages(|at| small_gpt().with_layers(9).stage(at)), &checkpoint);
    let says = "the checkpoint holds no parameter named `blocks.8.norm_attention.gamma` (stage 1), which the model has";
    assert_eq!(larger, says);
    let smaller = refused(CUT.builder().stages(|at| small_gpt().with_layers(7).stage(at)), &checkpoint);
    assert!(smaller.starts_with("the checkpoint holds 12 parameter(s) that the model does not have: "), "{smaller}");
    assert!(smaller.contains("blocks.7.norm_attention.gamma"), "{smaller}");
}

#[test]
fn a_model_of_another_width_is_refused_with_both_shapes() {
    let folder = tempdir().unwrap();
    let checkpoint = saved(&mut CUT.pipeline(), &folder);
    let wider = refused(CUT.builder().stages(|at| small_gpt().with_vocab(19).stage(at)), &checkpoint);
    assert_eq!(wider, "`embed.token.weight` was saved as [17, 8] of f32, but the model's is [19, 8] of f32");
}

#[test]
fn optimizers_must_be_of_one_type_and_have_been_saved() {
    let folder = tempdir().unwrap();
    let checkpoint = saved(&mut CUT.pipeline(), &folder);
    let sgd = refused(CUT.builder().optimizer(|| SgdConfig::new().init()), &checkpoint);
    assert!(sgd.contains("the optimizer does not keep what was saved for `"), "{sgd}");
    let folder = tempdir().unwrap();
    let without = CUT.builder();
    let none = Pipeline::builder().schedule(GPipe, Size::new(2, SAMPLES)).devices(vec![Device::flex()]);
    let checkpoints = Checkpoints::new(folder.path());
    none.stages(Text::stage).build().unwrap().save(&checkpoints, &()).unwrap();
    let checkpoint = checkpoints.latest().unwrap();
    let says = refused(without.optimizer(|| AdamWConfig::new().init()), &checkpoint);
    assert!(says.starts_with("the checkpoint holds no optimizer state"), "{says}");
}
