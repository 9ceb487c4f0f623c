//! Parameters that are built in half precision and frozen: their masters, their copies, and the rules that step them.

use super::{MICROBATCHES, WIDTH, data};
use burn::module::{Module, Param};
use burn::optim::AdamWConfig;
use burn::tensor::{DType, Distribution, FloatDType, Tensor};
use burn_pipeline::layers::LayerContext;
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::Precision;
use burn_pipeline::train::{Checkpoints, MemoryMeter};
use burn_pipeline::{Batch, Builder, Layer, Pipeline, Sequential, Stage, StageBox, StageContext};
use pipeline_tests::device::device;

const RATE: f64 = 1e-2;
const LAYERS: usize = 3;

/// A matrix that is built in half precision, and its moving average, which no gradient reaches.
#[derive(Module, Debug)]
struct Matrix {
    weight: Param<Tensor<2>>,
    average: Param<Tensor<2>>,
}

impl Matrix {
    fn new(half: FloatDType, at: &LayerContext) -> Self {
        let weight = Tensor::<2>::random([WIDTH, WIDTH], Distribution::Normal(0.0, 0.3), &at.device).cast(half);
        let average = Param::from_tensor(weight.clone().detach()).set_require_grad(false);
        Self { weight: Param::from_tensor(weight.detach()), average }
    }

    /// The precision rounds both parameters.
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        assert_eq!(self.weight.dtype(), self.average.dtype());
        x.cast(self.weight.dtype()).matmul(self.weight.val())
    }

    /// The guide's rule, in the types that the module has.
    fn follow(mut self) -> Self {
        let weight = self.weight.val().detach();
        self.average = self.average.map(|average| average * 0.99 + weight * 0.01);
        self
    }
}

/// Matrices in half precision with a loss in half precision.
fn builder(half: FloatDType, follows: bool) -> Builder {
    frozen_at(half, follows, None)
}

/// The same with a layer that is made frozen.
fn frozen_at(half: FloatDType, follows: bool, frozen: Option<usize>) -> Builder {
    let make = move |at: &LayerContext| match frozen == Some(at.layer) {
        true => Matrix::new(half, at).no_grad(),
        false => Matrix::new(half, at),
    };
    let layer = Layer::new("layers", make, Matrix::forward);
    let layer = if follows { layer.after_step(|own, _, _| own.follow()) } else { layer };
    let model = Sequential::new().repeat(LAYERS, layer);
    let model = model.loss(|y: Tensor<2>, target: Tensor<2>| (y.clone() - target.cast(y.dtype())).square().mean());
    let rounded = if half == FloatDType::BF16 { Precision::bf16() } else { Precision::f16() };
    Pipeline::builder()
        .layers(model)
        .schedule("1F1B", Size::new(LAYERS, MICROBATCHES))
        .devices(vec![device()])
        .optimizer(|| AdamWConfig::new().init())
        .precision(rounded)
}

fn batch(step: usize) -> Batch {
    let [x, target] = data(step);
    Batch::new(x).target(target)
}

/// The stored weights and averages.
fn stored(pipeline: &mut Pipeline, name: &str) -> Vec<(DType, Vec<f32>)> {
    let named = pipeline.named_weights().unwrap().concat().into_iter();
    let named = named.filter(|weight| weight.names[0].ends_with(name));
    named.map(|weight| (weight.value.dtype(), weight.value.to_data().unwrap().iter().collect())).collect()
}

#[test]
fn a_parameter_that_is_frozen_after_some_steps_keeps_its_master_and_is_rounded_for_forwards() {
    for half in [FloatDType::BF16, FloatDType::F16] {
        let mut pipeline = builder(half, false).build().unwrap();
        (0..3).for_each(|step| drop(pipeline.step(batch(step), RATE).unwrap()));
        let before = stored(&mut pipeline, "weight").swap_remove(1);
        pipeline.replace_layer(1, |own: Matrix, _| own.no_grad()).unwrap();
        (3..6).for_each(|step| drop(pipeline.step(batch(step), RATE).unwrap()));
        assert_eq!(before.0, DType::F32, "{half:?}");
        assert_eq!(stored(&mut pipeline, "weight").swap_remove(1), before, "{half:?}");
    }
}

#[test]
fn a_moving_average_of_weights_built_in_half_follows_their_masters_in_f32() {
    for half in [FloatDType::BF16, FloatDType::F16] {
        let mut pipeline = builder(half, true).build().unwrap();
        let mut averages: Vec<Vec<f32>> = stored(&mut pipeline, "average").into_iter().map(|(_, own)| own).collect();
        for step in 0..5 {
            // A step that the loss scale skips runs no rule.
            if pipeline.step(batch(step), RATE).unwrap().skipped.is_some() {
                continue;
            }
            for (average, (_, weight)) in averages.iter_mut().zip(stored(&mut pipeline, "weight")) {
                average.iter_mut().zip(weight).for_each(|(average, weight)| *average = *average * 0.99 + weight * 0.01);
            }
        }
        let expected: Vec<(DType, Vec<f32>)> = averages.into_iter().map(|average| (DType::F32, average)).collect();
        assert_eq!(stored(&mut pipeline, "average"), expected, "{half:?}");
    }
}

/// A stage with a rule for its matrix, beside a frozen base.
#[derive(Module, Debug)]
struct Adapted {
    matrix: Matrix,
    base: Param<Tensor<2>>,
}

impl Stage for Adapted {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.matrix.forward(x) + self.base.val()
    }

    fn after_step(self, _: &[Vec<f64>]) -> Self {
        Self { matrix: self.matrix.follow(), ..self }
    }
}

/// One stage with a rule of its own: what that changes is not known before a step.
fn adapted(half: FloatDType) -> Builder {
    let stage = move |at: &StageContext| {
        let at = LayerContext { layer: at.index, position: at.index, device: at.device.clone() };
        let base = Tensor::<2>::full([1, WIDTH], 0.1, &at.device).cast(half);
        let base = Param::from_tensor(base).set_require_grad(false);
        let own = Adapted { matrix: Matrix::new(half, &at), base };
        StageBox::with_loss(own, |y: Tensor<2>, target: Tensor<2>| (y.clone() - target.cast(y.dtype())).square().mean())
    };
    let builder = Pipeline::builder().schedule("GPipe", Size::new(1, MICROBATCHES)).devices(vec![device()]);
    let rounded = if half == FloatDType::BF16 { Precision::bf16() } else { Precision::f16() };
    builder.stages(stage).optimizer(|| AdamWConfig::new().init()).precision(rounded)
}

#[test]
fn a_frozen_base_that_the_rule_does_not_change_stays_half() {
    let mut pipeline = adapted(FloatDType::BF16).build().unwrap();
    (0..2).for_each(|step| drop(pipeline.step(batch(step), RATE).unwrap()));
    let types = ["weight", "average", "base"].map(|name| stored(&mut pipeline, name).swap_remove(0).0);
    assert_eq!(types, [DType::F32, DType::F32, DType::BF16]);
}

#[test]
fn a_job_with_a_moving_average_resumes_with_its_values_in_f32() {
    for half in [FloatDType::BF16, FloatDType::F16] {
        let builds: [fn(FloatDType) -> Builder; 2] = [|half| builder(half, true), adapted];
        for build in builds {
            let folder = tempfile::tempdir().unwrap();
            let checkpoints = Checkpoints::new(folder.path().join("saved"));
            let [mut first, mut second] = [(); 2].map(|()| build(half).build().unwrap());
            // A step that the loss scale skips runs no rule.
            (0..6).for_each(|step| drop(first.step(batch(step), RATE).unwrap()));
            first.save(&checkpoints, &()).unwrap();
            second.load(&checkpoints.latest().unwrap()).unwrap();
            let averages = stored(&mut first, "average");
            assert!(averages.iter().all(|(dtype, _)| *dtype == DType::F32), "{half:?}");
            assert_eq!(stored(&mut second, "average"), averages, "{half:?}, loaded");
            for step in 6..8 {
                let losses = [&mut first, &mut second].map(|job| job.step(batch(step), RATE).unwrap().loss);
                assert_eq!(losses[0], losses[1], "{half:?}, step {step}");
            }
            let exported = [&mut first, &mut second].map(|job| {
                let file = folder.path().join("exported");
                job.export(&file).unwrap();
                std::fs::read(file).unwrap()
            });
            assert!(exported[0] == exported[1], "{half:?}: another model");
        }
    }
}

#[test]
fn a_job_in_which_a_trained_layer_is_frozen_resumes_with_its_master() {
    for half in [FloatDType::BF16, FloatDType::F16] {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path());
        let mut first = builder(half, false).build().unwrap();
        (0..3).for_each(|step| drop(first.step(batch(step), RATE).unwrap()));
        first.save(&checkpoints, &()).unwrap();
        let mut second = frozen_at(half, false, Some(1)).build().unwrap();
        second.load(&checkpoints.latest().unwrap()).unwrap();
        first.replace_layer(1, |own: Matrix, _| own.no_grad()).unwrap();
        for step in 3..6 {
            let losses = [&mut first, &mut second].map(|job| job.step(batch(step), RATE).unwrap().loss);
            assert_eq!(losses[0], losses[1], "{half:?}, step {step}");
        }
        assert_eq!(stored(&mut second, "weight"), stored(&mut first, "weight"), "{half:?}");
    }
}

/// A meter that has nothing to count: the test is that the measurement runs.
struct Nothing;

impl MemoryMeter for Nothing {
    fn allocated(&self) -> usize {
        0
    }

    fn take_peak(&self) -> usize {
        0
    }
}

#[test]
fn layers_and_memory_of_a_model_whose_loss_is_half_are_measured() {
    let microbatch = || {
        let [x, target] = data(0).map(|tensor| tensor.narrow(0, 0, 3));
        Batch::new(x).target(target)
    };
    for half in [FloatDType::BF16, FloatDType::F16] {
        let measured = builder(half, false).measure_layers(microbatch(), &['B', 'B', 'L'], 1).unwrap();
        assert_eq!(measured.layers.len(), LAYERS);
        let profile = builder(half, false).measure_memory(microbatch(), &Nothing).unwrap();
        assert_eq!(profile.stages().len(), LAYERS);
    }
}
