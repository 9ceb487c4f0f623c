//! What identifiers of parameters decide: clones keep them, rules may give new ones, and modules share statistics.

use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use burn_pipeline::execute::ExecuteError;
use burn_pipeline::payload::AnyTensor;
use burn_pipeline::stage::{Names, SplitBackward, StageError, init_seeded, named_weights, untied, with_weights};
use burn_pipeline::train::{BuildError, PipelineError};
use burn_pipeline::{Batch, Pipeline, Size, Stage, StageBox, StageContext};
use std::collections::HashMap;

fn loss(y: Tensor<2>, wanted: Tensor<2>) -> Tensor<1> {
    (y - wanted).square().mean()
}

fn batch() -> Batch {
    let values = pipeline_tests::noise::noise(5, 32);
    let x = Tensor::<1>::from_floats(&*values, &Device::flex()).reshape([8, 4]);
    Batch::new(x.clone()).target(x * 0.3)
}

fn pipeline(
    split: SplitBackward,
    stage: impl Fn(&StageContext) -> StageBox + Send + Sync + 'static,
) -> Result<Pipeline, BuildError> {
    let builder = Pipeline::builder().schedule("1F1B", Size::new(1, 4)).devices(vec![Device::flex()]);
    builder.stages(stage).optimizer(|| SgdConfig::new().init()).split(split).build()
}

fn named(pipeline: &mut Pipeline, name: &str) -> Vec<f32> {
    let weights = pipeline.named_weights().unwrap().into_iter().flatten();
    let mut found = weights.filter(|weight| weight.names[0] == name);
    found.next().unwrap().value.to_data().unwrap().iter().collect()
}

/// A model beside a frozen copy of it, as for preference losses.
#[derive(Module, Debug)]
struct Pair {
    policy: Linear,
    reference: Linear,
}

impl Stage for Pair {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.policy.forward(x.clone()) - self.reference.forward(x) * 0.5
    }
}

fn pair(at: &StageContext, copy: fn(Linear) -> Linear) -> StageBox {
    let policy = init_seeded(1, &at.device, |device| LinearConfig::new(4, 4).init(device));
    let reference = copy(policy.clone()).no_grad();
    StageBox::with_loss(Pair { policy, reference }, loss)
}

#[test]
fn a_frozen_clone_needs_identifiers_of_its_own() {
    for split in [SplitBackward::Eager, SplitBackward::Captured] {
        let refused = pipeline(split, |at| pair(at, |clone| clone)).unwrap_err();
        let BuildError::Stages(error) = &refused else { panic!("{refused}") };
        let Some(ExecuteError::Module { source, .. }) = error.of_rank() else { panic!("{refused}") };
        assert!(matches!(source, StageError::HalfFrozen { .. }), "{refused}");
        assert!(refused.to_string().contains("`reference.weight` is frozen") && refused.to_string().contains("untied"));
        let mut trained = pipeline(split, |at| pair(at, untied)).unwrap();
        let before = named(&mut trained, "reference.weight");
        assert_eq!(named(&mut trained, "policy.weight"), before);
        let losses: Vec<f64> = (0..3).map(|_| trained.step(batch(), 0.1).unwrap().loss).collect();
        assert!(losses[2] < losses[0], "{losses:?}");
        assert_eq!(named(&mut trained, "reference.weight"), before);
        assert_ne!(named(&mut trained, "policy.weight"), before);
    }
}

#[test]
fn a_trained_clone_gets_gradients_of_its_own() {
    let weights = |split, copy: fn(&StageContext, &Linear) -> Linear| {
        let mut trained = pipeline(split, move |at| {
            let policy = init_seeded(1, &at.device, |device| LinearConfig::new(4, 4).init(device));
            StageBox::with_loss(Pair { reference: copy(at, &policy), policy }, loss)
        })
        .unwrap();
        (0..2).for_each(|_| drop(trained.step(batch(), 0.1).unwrap()));
        ["policy.weight", "reference.weight"].map(|name| named(&mut trained, name))
    };
    let made_twice =
        |at: &StageContext, _: &Linear| init_seeded(1, &at.device, |device| LinearConfig::new(4, 4).init(device));
    for split in [SplitBackward::Eager, SplitBackward::Captured] {
        assert_eq!(weights(split, |_, policy| untied(policy.clone())), weights(split, made_twice));
    }
}

#[test]
#[should_panic(expected = "running statistics keep their identifier")]
fn running_statistics_cannot_be_untied() {
    untied(BatchNormConfig::new(4).init(&Device::flex()));
}

/// A rule that makes a parameter anew after each step.
#[derive(Module, Debug)]
struct Remade {
    scale: Param<Tensor<1>>,
    linear: Linear,
}

impl Stage for Remade {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.linear.forward(x) * self.scale.val().unsqueeze()
    }

    fn after_step(mut self, _: &[Vec<f64>]) -> Self {
        self.scale = Param::from_tensor((self.scale.val().detach() * 0.99).detach());
        self
    }
}

#[test]
fn a_parameter_that_a_rule_makes_anew_trains_on_in_captured_stages() {
    let weights = |split| {
        let mut pipeline = pipeline(split, |at| {
            let linear = init_seeded(1, &at.device, |device| LinearConfig::new(4, 4).init(device));
            let scale = Param::from_tensor(Tensor::ones([4], &at.device));
            StageBox::with_loss(Remade { scale, linear }, loss)
        })
        .unwrap();
        (0..3).for_each(|_| drop(pipeline.step(batch(), 0.1).unwrap()));
        named(&mut pipeline, "scale")
    };
    assert_eq!(weights(SplitBackward::Captured), weights(SplitBackward::Eager));
}

#[derive(Module, Debug)]
struct Normed {
    norm: BatchNorm,
    linear: Linear,
}

impl Stage for Normed {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.linear.forward(self.norm.forward(x))
    }
}

#[test]
fn a_refused_module_leaves_running_statistics_as_they_were() {
    let mut pipeline = pipeline(SplitBackward::Auto, |at| {
        let linear = LinearConfig::new(4, 4).init(&at.device);
        StageBox::with_loss(Normed { norm: BatchNormConfig::new(4).init(&at.device), linear }, loss)
    })
    .unwrap();
    pipeline.step(batch(), 0.1).unwrap();
    let before = named(&mut pipeline, "norm.running_mean");
    let other = Tensor::<1>::full([4], 7.0, &Device::flex());
    let changed = move |module: Normed| {
        let weights = named_weights(&module, &Names::default()).into_iter();
        let mean = weights.filter(|weight| weight.path == "norm.running_mean");
        let own: HashMap<_, _> = mean.map(|weight| (weight.id, AnyTensor::new(other.clone()))).collect();
        with_weights(module, &own)
    };
    let fails = changed.clone();
    let error = pipeline.replace_module(0, move |module: Normed, _| {
        drop(fails(module));
        panic!("a later tensor has another shape")
    });
    assert!(matches!(error, Err(PipelineError::Replace { .. })), "{error:?}");
    assert_eq!(named(&mut pipeline, "norm.running_mean"), before);
    // One that fits is adopted with its own.
    pipeline.replace_module(0, move |module: Normed, _| changed(module)).unwrap();
    assert_eq!(named(&mut pipeline, "norm.running_mean"), [7.0; 4]);
}

#[test]
fn a_copy_of_a_module_keeps_its_running_statistics_and_does_not_change_the_pipeline() {
    let mut pipeline = pipeline(SplitBackward::Auto, |at| {
        let linear = init_seeded(1, &at.device, |device| LinearConfig::new(4, 4).init(device));
        StageBox::with_loss(Normed { norm: BatchNormConfig::new(4).init(&at.device), linear }, loss)
    })
    .unwrap();
    let mean = |module: &Normed| -> Vec<f32> {
        let weights = named_weights(module, &Names::default()).into_iter();
        let found = weights.filter(|weight| weight.path == "norm.running_mean").map(|weight| weight.value);
        found.flat_map(|value| value.to_data().unwrap().iter::<f32>().collect::<Vec<f32>>()).collect()
    };
    pipeline.step(batch(), 0.1).unwrap();
    let copy = pipeline.module::<Normed>(0).unwrap();
    let (copied, held) = (mean(&copy), named(&mut pipeline, "norm.running_mean"));
    assert_eq!(copied, held);
    let x = Tensor::<2>::full([8, 4], 5.0, &Device::flex().autodiff());
    for _ in 0..2 {
        copy.linear.forward(copy.norm.forward(x.clone())).sum().backward();
    }
    assert_eq!(named(&mut pipeline, "norm.running_mean"), held);
    let copied = mean(&copy);
    pipeline.step(batch(), 0.1).unwrap();
    assert_ne!(named(&mut pipeline, "norm.running_mean"), held);
    assert_eq!(mean(&copy), copied);
    assert!(copy.linear.weight.is_require_grad(), "the copy still trains");
}

/// A parameter at two paths.
#[derive(Module, Debug)]
struct Twice {
    first: Param<Tensor<2>>,
    second: Param<Tensor<2>>,
    last: Param<Tensor<2>>,
}

impl Stage for Twice {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        x.matmul(self.first.val()).matmul(self.second.val()).matmul(self.last.val())
    }
}

#[test]
fn weights_and_gradients_of_a_parameter_with_two_paths_have_the_same_places() {
    for split in [SplitBackward::Eager, SplitBackward::Captured] {
        let mut pipeline = pipeline(split, |at| {
            let made = |seed| init_seeded(seed, &at.device, |device| LinearConfig::new(4, 4).init(device).weight);
            let (first, last) = (made(1), made(2));
            StageBox::with_loss(Twice { second: first.clone(), first, last }, loss)
        })
        .unwrap();
        let stepped = |weight: &AnyTensor, gradient: &AnyTensor| -> Vec<f32> {
            let values = |tensor: &AnyTensor| tensor.to_data().unwrap().iter::<f32>().collect::<Vec<f32>>();
            values(weight).into_iter().zip(values(gradient)).map(|(weight, gradient)| weight - 0.5 * gradient).collect()
        };
        let before = pipeline.weights().unwrap().remove(0);
        pipeline.accumulate(batch()).unwrap();
        let gradients = pipeline.take_gradients().unwrap().remove(0);
        assert_eq!((before.len(), gradients.len()), (2, 2));
        pipeline.step(batch(), 0.5).unwrap();
        let after = pipeline.weights().unwrap().remove(0);
        for ((before, gradient), after) in before.iter().zip(gradients).zip(after) {
            let expected = stepped(before, &gradient.unwrap());
            let after: Vec<f32> = after.to_data().unwrap().iter().collect();
            assert!(after.iter().zip(expected).all(|(after, expected)| (after - expected).abs() < 1e-6), "{split:?}");
        }
    }
}
