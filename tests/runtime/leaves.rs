//! Parameters that are nodes of a graph: computed from others on a device with autodiff, as GPT-2 scales its
//! initial values. Plain Burn panics at their second backward. A stage trains the value as the plain loop trains a
//! leaf of the same value, or refuses it by name.

use crate::cases::{noise, range, sizes};
use burn::module::{Lora, Module, ModuleMapper, Param, QLora, Quantizer};
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::tanh;
use burn::tensor::quantization::{Calibration, QuantScheme};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use burn_pipeline::execute::ExecuteError;
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{ReplaceError, SplitBackward, StageError, init_seeded};
use burn_pipeline::train::{BuildError, PipelineError};
use burn_pipeline::{Accumulation, Batch, Builder, Pipeline, Stage, StageBox, StageContext};
use pipeline_tests::reference::{Reference, weights, whole};

const WIDTH: usize = 4;
const LAYERS: usize = 4;
const SAMPLES: usize = 8;
const MICROBATCHES: usize = 4;
const RATE: f64 = 0.05;
const STEPS: usize = 3;

/// A rule that applies after each step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    None,
    /// Trained weights are clamped to a range.
    Clamp,
    /// A frozen parameter is the moving average of a trained one, and part of the output.
    Average,
}

#[derive(Module, Debug)]
struct Part {
    layers: Vec<Linear>,
    average: Param<Tensor<2>>,
    #[module(skip)]
    rule: Rule,
}

impl Part {
    fn followed(mut self, way: Way) -> Self {
        match self.rule {
            Rule::None => {}
            Rule::Clamp => {
                for layer in &mut self.layers {
                    layer.weight = computed(layer.weight.clone(), way, |weight| weight.clamp(-0.2, 0.2));
                }
            }
            Rule::Average => {
                let weight = self.layers[0].weight.val();
                let weight = if way == Way::Leaf { Tensor::from_inner(weight.inner()) } else { weight };
                self.average = computed(self.average, way, |average| average * 0.5 + weight * 0.5);
            }
        }
        self
    }
}

impl Stage for Part {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        let x = self.layers.iter().fold(x, |x, layer| x.clone() + tanh(layer.forward(x)));
        x.clone() + x.matmul(self.average.val())
    }

    fn after_step(self, _: &[Vec<f64>]) -> Self {
        self.followed(Way::Map)
    }
}

/// How a value is computed from a parameter's.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// Detached from the graph, as the plain loop needs it.
    Leaf,
    Map,
    /// Like `Map`, with a cast.
    Cast,
    /// As Burn's mappers are written.
    Mapped,
    /// Loses whether it is trained.
    Forgets,
}

fn computed<const D: usize>(
    param: Param<Tensor<D>>,
    way: Way,
    f: impl FnOnce(Tensor<D>) -> Tensor<D>,
) -> Param<Tensor<D>> {
    match way {
        Way::Leaf => {
            let trained = param.is_require_grad();
            param
                .map(|value| Tensor::from_inner(f(Tensor::from_inner(value.inner())).inner()).set_require_grad(trained))
        }
        Way::Map => param.map(f),
        Way::Cast => param.map(|value| f(value.cast(FloatDType::F64).cast(FloatDType::F32))),
        Way::Mapped => {
            let (id, value, mapper) = param.consume();
            Param::from_mapped_value(id, f(value), mapper)
        }
        Way::Forgets => Param::initialized(param.id, f(param.val())),
    }
}

struct Halve(Way);

impl ModuleMapper for Halve {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        computed(param, self.0, |value| value * 0.5)
    }
}

/// The part of the model at this place: halved, with the first bias frozen.
fn part(at: &StageContext, way: Way, rule: Rule) -> Part {
    let first = at.layers(LAYERS).start;
    let layer = |layer: usize, device: &Device| {
        let mut linear = LinearConfig::new(WIDTH, WIDTH).init(device);
        if layer == first {
            linear.bias = linear.bias.map(|bias| bias.set_require_grad(false));
        }
        // Separately drawn values are part of what `make` returns, node or not.
        linear.map(&mut Halve(way))
    };
    let layers = at.layers(LAYERS).map(|i| init_seeded(i as u64, &at.device, |device| layer(i, device))).collect();
    let average = Param::from_tensor(Tensor::zeros([WIDTH, WIDTH], &at.device)).set_require_grad(false);
    Part { layers, average: computed(average, way, |average| average + 0.1), rule }
}

fn stage(at: &StageContext, way: Way, rule: Rule) -> StageBox {
    let part = part(at, way, rule);
    match at.is_last() {
        false => StageBox::new(part),
        true => StageBox::with_loss(part, |y: Tensor<2>, wanted: Tensor<2>| (y - wanted).square().mean()),
    }
}

fn data(step: usize) -> (Tensor<2>, Tensor<2>) {
    let of = |seed: usize| {
        let values = noise(seed as u64, SAMPLES * WIDTH);
        Tensor::<1>::from_floats(&*values, &Device::flex()).reshape([SAMPLES, WIDTH])
    };
    (of(2 * step), of(2 * step + 1))
}

fn step(pipeline: &mut Pipeline, number: usize) -> f64 {
    let (x, wanted) = data(number);
    pipeline.step(Batch::new(x).target(wanted), RATE).unwrap().loss
}

/// A schedule with chunks, replicas, and the stages' engine.
type Run = (&'static str, usize, usize, fn(Builder) -> Builder);

const RUNS: [Run; 8] = [
    ("1F1B", 1, 1, |builder| builder.split(SplitBackward::Eager)),
    ("ZBH1", 1, 1, |builder| builder.split(SplitBackward::Captured)),
    ("ZBH1", 1, 1, |builder| builder.split(SplitBackward::Eager)),
    ("ZBVZeroBubble", 2, 1, |builder| builder),
    ("DualPipe", 1, 1, |builder| builder),
    ("1F1B", 1, 2, |builder| builder.sharded(true)),
    ("ZBH1", 1, 2, |builder| builder.sharded(true)),
    ("1F1B", 1, 1, |builder| builder.compile(true)),
];

fn builder((schedule, chunks, replicas, with): Run, way: Way, rule: Rule) -> Builder {
    let size = Size { ranks: 2, chunks, microbatches: MICROBATCHES / replicas };
    let builder = Pipeline::builder().schedule(schedule, size).devices(vec![Device::flex()]);
    let builder = builder.accumulation(Accumulation::Ordered).optimizer(|| AdamWConfig::new().init());
    with(builder.stages(move |at| stage(at, way, rule)).data_parallel(replicas))
}

/// The losses and weights of the plain loop, of the parts that `stages` stages have, in sequence.
fn plain(stages: usize, rule: Rule) -> (Vec<f64>, Vec<Vec<f32>>) {
    let at = |index| StageContext { index, stages, ..whole() };
    let model: Vec<Part> = (0..stages).map(|index| part(&at(index), Way::Leaf, rule)).collect();
    let (mut reference, sizes) = (Reference::new(model), sizes(SAMPLES, MICROBATCHES));
    let losses = (0..STEPS).map(|number| {
        let (x, wanted) = data(number);
        let loss = |model: &Vec<Part>, i: usize| {
            let cut = |tensor: &Tensor<2>| tensor.clone().slice([range(&sizes, i)]).autodiff();
            let y = model.iter().fold(cut(&x), |x, part| part.forward(x, ()));
            (y - cut(&wanted)).square().mean()
        };
        let loss = reference.step(&sizes, RATE, None, loss).loss;
        reference.model = reference.model.drain(..).map(|part| part.followed(Way::Leaf)).collect();
        loss
    });
    (losses.collect(), weights(&reference.model))
}

fn values(pipeline: &mut Pipeline) -> Vec<Vec<f32>> {
    pipeline.weights().unwrap().iter().flatten().map(crate::cases::read).collect()
}

fn assert_trains_as_plain(run: Run, way: Way, rule: Rule) {
    let mut pipeline = builder(run, way, rule).build().unwrap();
    let losses: Vec<f64> = (0..STEPS).map(|number| step(&mut pipeline, number)).collect();
    let (expected, trained) = plain(pipeline.placement().stages(), rule);
    let got = values(&mut pipeline);
    let of = format!("{} x{} {way:?} {rule:?}", run.0, run.2);
    if run.2 == 1 && run.0 != "1F1B" || run.1 == 2 {
        assert_eq!((&losses, &got), (&expected, &trained), "{of}");
    }
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-5 * b.abs().max(0.1);
    let of_losses = losses.iter().zip(&expected).all(|(a, b)| near(*a, *b));
    let pairs = got.iter().flatten().zip(trained.iter().flatten());
    let odd: Vec<_> = pairs.filter(|(a, b)| !near(f64::from(**a), f64::from(**b))).collect();
    assert!(of_losses && odd.is_empty(), "{of}: {losses:?}, not {expected:?}; {odd:?}");
}

#[test]
fn what_was_computed_is_trained_as_the_plain_loop_trains_leaves() {
    for run in RUNS {
        for way in [Way::Map, Way::Cast, Way::Mapped] {
            assert_trains_as_plain(run, way, Rule::None);
        }
    }
}

#[test]
fn a_rule_may_compute_trained_weights_of_themselves_and_frozen_ones_of_trained_ones() {
    for run in RUNS {
        assert_trains_as_plain(run, Way::Map, Rule::Clamp);
        assert_trains_as_plain(run, Way::Map, Rule::Average);
    }
}

#[test]
fn a_module_in_place_of_another_is_trained_too() {
    for run in [RUNS[0], RUNS[1]] {
        let replaced = |way| {
            let mut pipeline = builder(run, Way::Leaf, Rule::None).build().unwrap();
            step(&mut pipeline, 0);
            pipeline.replace_module(1, move |part: Part, _: &StageContext| part.map(&mut Halve(way))).unwrap();
            (step(&mut pipeline, 1), step(&mut pipeline, 2), values(&mut pipeline))
        };
        // Parameters from before keep their flag even if the value loses it.
        for way in [Way::Map, Way::Forgets] {
            assert_eq!(replaced(way), replaced(Way::Leaf), "{run:?}");
        }
    }
}

/// The reason why a stage was not built.
fn refused(error: BuildError) -> (usize, StageError) {
    let BuildError::Stages(of_stages) = &error else { panic!("{error}") };
    let PipelineError::Rank(of_rank) = of_stages.as_ref() else { panic!("{error}") };
    let ExecuteError::Module { stage, source, .. } = of_rank.cause() else { panic!("{error}") };
    (stage.index(), source.clone())
}

#[test]
fn a_node_that_counts_as_frozen_is_refused_by_name() {
    for run in RUNS {
        let stages =
            move |at: &StageContext| stage(at, if at.index == 1 { Way::Forgets } else { Way::Leaf }, Rule::None);
        let error = builder(run, Way::Leaf, Rule::None).stages(stages).build().unwrap_err();
        // Of two copies of the stage, either may report first; the second's number is `'1`.
        assert!(error.to_string().contains("1: `layers.0.weight`"), "{error}");
        assert_eq!(refused(error), (1, StageError::Unclear { path: "layers.0.weight".into() }));
    }
}

fn quantised(linear: Linear) -> Linear {
    let quantizer = Quantizer::new(Calibration::MinMax, QuantScheme::default());
    linear.apply_qlora(QLora::new(Lora::new(2, 4.0), quantizer))
}

#[test]
fn quantised_parameters_are_refused_by_name_with_a_remedy() {
    for run in RUNS {
        let stages = move |at: &StageContext| {
            let mut part = part(at, Way::Leaf, Rule::None);
            if at.index == 1 {
                part.layers = part.layers.into_iter().map(quantised).collect();
            }
            match at.is_last() {
                false => StageBox::new(part),
                true => StageBox::with_loss(part, |y: Tensor<2>, wanted: Tensor<2>| (y - wanted).square().mean()),
            }
        };
        let error = builder(run, Way::Leaf, Rule::None).stages(stages).build().unwrap_err();
        assert!(error.to_string().contains("`Module::apply_lora`"), "{error}");
        let (stage, StageError::Quantised { path, dtype: DType::QFloat(_) }) = refused(error) else { panic!() };
        assert_eq!((stage, path.as_ref()), (1, "layers.0.weight"));
    }
    let mut pipeline = builder(RUNS[1], Way::Leaf, Rule::None).build().unwrap();
    step(&mut pipeline, 0);
    let change = |part: Part, _: &StageContext| {
        let layers = part.layers.into_iter().map(quantised).collect();
        Part { layers, ..part }
    };
    let error = pipeline.replace_module(1, change).unwrap_err();
    let PipelineError::Replace { stage: 1, source: ReplaceError::Parameter(source) } = &error else {
        panic!("{error}")
    };
    assert!(matches!(source.as_ref(), StageError::Quantised { .. }), "{error}");
    // The pipeline is as before.
    step(&mut pipeline, 1);
}
