//! Whole pipelines of layers that defer equal the plain loop bit for bit under schedules that split backwards.

use crate::cases::{Case, noise};
use crate::parity::{Plain, assert_equal, builder};
use burn::module::Module;
use burn::nn::conv::{Conv1d, Conv1dConfig, Conv2d, Conv2dConfig};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, PaddingConfig1d, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::ops::DeferredForward;
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::stage::{Accumulation, Batch, SplitBackward, Stage, StageBox, init_seeded};
use burn_pipeline::train::StageContext;
use pipeline_tests::reference::whole;

const WIDTH: usize = 6;
const LAYERS: usize = 8;

/// How the layers of a stack run.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Plain,
    Deferred,
}

#[derive(Module, Debug)]
struct Layer {
    linear: Linear,
    rows: Embedding,
}

/// A part of a stack of linear layers and tables, with a plain stack's field names.
#[derive(Module, Debug)]
struct Stack {
    layers: Vec<Layer>,
}

type Pair = (Tensor<2>, Tensor<2, Int>);

impl Stack {
    fn part(at: &StageContext) -> Self {
        let layer = |index: usize| {
            init_seeded(300 + index as u64, &at.device, |device| Layer {
                linear: LinearConfig::new(WIDTH, WIDTH).with_bias(index.is_multiple_of(2)).init(device),
                rows: EmbeddingConfig::new(3, WIDTH).init(device),
            })
        };
        let mut layers: Vec<Layer> = at.layers(LAYERS).map(layer).collect();
        // Some weights are frozen: layer 3 is not trained at all, layer 4 only by its bias.
        for (index, layer) in at.layers(LAYERS).zip(&mut layers) {
            if index == 3 {
                *layer = layer.clone().no_grad();
            }
            if index == 4 {
                layer.linear.weight = layer.linear.weight.clone().set_require_grad(false);
            }
        }
        Self { layers }
    }

    fn run(&self, (x, ids): Pair, way: Way) -> Pair {
        let [batch, _] = ids.dims();
        let y = self.layers.iter().fold(x, |x, layer| {
            let (row, y) = match way {
                Way::Plain => (layer.rows.forward(ids.clone()), layer.linear.forward(x.clone())),
                Way::Deferred => (layer.rows.forward_deferred(ids.clone()), layer.linear.forward_deferred(x.clone())),
            };
            relu(y) + row.reshape([batch, WIDTH]) + x
        });
        (y, ids)
    }
}

impl Stage for Stack {
    type Input = Pair;
    type Extra = ();
    type Output = Pair;

    fn forward(&self, input: Pair, (): ()) -> Pair {
        self.run(input, Way::Deferred)
    }
}

fn mean_square<const D: usize>(y: Tensor<D>, target: Tensor<D>) -> Tensor<1> {
    (y - target).square().mean()
}

struct Stacks {
    x: Tensor<2>,
    ids: Tensor<2, Int>,
    target: Tensor<2>,
}

fn draw<const D: usize>(seed: u64, shape: [usize; D]) -> Tensor<D> {
    Tensor::<1>::from_floats(&*noise(seed, shape.iter().product()), &Device::flex()).reshape(shape)
}

impl Case for Stacks {
    type Model = Stack;

    fn model(&self) -> Stack {
        Stack::part(&whole())
    }

    fn stage(at: &StageContext) -> StageBox {
        let part = Stack::part(at);
        match at.is_last() {
            true => StageBox::with_loss(part, |(y, _): Pair, target| mean_square::<2>(y, target)),
            false => StageBox::new(part),
        }
    }

    fn batch(&self) -> Batch {
        Batch::new((self.x.clone(), self.ids.clone())).target(self.target.clone())
    }

    fn loss(&self, model: &Stack, samples: std::ops::Range<usize>) -> Tensor<1> {
        let (x, ids) = (self.x.clone().slice([samples.clone()]), self.ids.clone().slice([samples.clone()]));
        let (y, _) = model.run((x.autodiff(), ids.autodiff()), Way::Plain);
        mean_square(y, self.target.clone().slice([samples]).autodiff())
    }
}

/// An image's planes, and its pixels as one row.
#[derive(Module, Debug)]
struct Picture {
    plane: Conv2d,
    line: Conv1d,
}

/// A part of a small convolutional model.
#[derive(Module, Debug)]
struct Images {
    pictures: Vec<Picture>,
}

impl Images {
    fn part(at: &StageContext) -> Self {
        let picture = |index: usize| {
            init_seeded(400 + index as u64, &at.device, |device| {
                let plane = Conv2dConfig::new([2, 2], [3, 2]).with_padding(PaddingConfig2d::Same);
                let line = Conv1dConfig::new(2, 2, 4).with_padding(PaddingConfig1d::Same);
                Picture { plane: plane.with_bias(index.is_multiple_of(2)).init(device), line: line.init(device) }
            })
        };
        Self { pictures: at.layers(LAYERS).map(picture).collect() }
    }

    fn run(&self, x: Tensor<4>, way: Way) -> Tensor<4> {
        self.pictures.iter().fold(x, |x, Picture { plane, line }| {
            let y = if way == Way::Plain { plane.forward(x.clone()) } else { plane.forward_deferred(x.clone()) };
            let [batch, channels, height, width] = y.dims();
            let pixels = x.clone().reshape([batch, channels, height * width]);
            let pixels = if way == Way::Plain { line.forward(pixels) } else { line.forward_deferred(pixels) };
            x + relu(y) + pixels.reshape([batch, channels, height, width])
        })
    }
}

impl Stage for Images {
    type Input = Tensor<4>;
    type Extra = ();
    type Output = Tensor<4>;

    fn forward(&self, x: Tensor<4>, (): ()) -> Tensor<4> {
        self.run(x, Way::Deferred)
    }
}

struct Convolutions {
    x: Tensor<4>,
    target: Tensor<4>,
}

impl Case for Convolutions {
    type Model = Images;

    fn model(&self) -> Images {
        Images::part(&whole())
    }

    fn stage(at: &StageContext) -> StageBox {
        let part = Images::part(at);
        match at.is_last() {
            true => StageBox::with_loss(part, mean_square::<4>),
            false => StageBox::new(part),
        }
    }

    fn batch(&self) -> Batch {
        Batch::new(self.x.clone()).target(self.target.clone())
    }

    fn loss(&self, model: &Images, samples: std::ops::Range<usize>) -> Tensor<1> {
        let y = model.run(self.x.clone().slice([samples.clone()]).autodiff(), Way::Plain);
        mean_square(y, self.target.clone().slice([samples]).autodiff())
    }
}

const SPLITTING: [(&str, usize, usize); 5] =
    [("ZBH1", 2, 1), ("ZBH1", 4, 1), ("InterleavedZeroBubble", 2, 2), ("ZBVZeroBubble", 2, 2), ("ZBVZeroBubble", 4, 2)];

fn assert_all<C: Case>(new: impl Fn(usize) -> C, share: impl Fn(usize, usize) -> f64) {
    for (microbatches, samples) in [(4, 4), (8, 11)] {
        let case = new(samples);
        let plain = Plain::new(&case, microbatches, samples);
        for (name, ranks, chunks) in SPLITTING {
            let size = Size { ranks, chunks, microbatches };
            let builder = builder::<C>(by_name(name).unwrap().as_ref(), size)
                .accumulation(Accumulation::Ordered)
                .split(SplitBackward::Eager);
            let mut pipeline = builder.build().unwrap();
            assert_equal(&case, &mut pipeline, &plain, &format!("{name} on {ranks} ranks, {samples} samples"));
            for (stage, report) in pipeline.engines().unwrap() {
                let deferred = report.deferred.map(|deferred| deferred.share());
                let expected = share(stage.index(), ranks * chunks);
                assert_eq!((report.captured, deferred), (false, Some(expected)), "{name}: stage {stage:?}");
            }
        }
    }
}

/// Layer 4's weight is frozen, so Burn's own layer computes its bias's gradient. All other gradients are deferred.
fn stack_share(stage: usize, stages: usize) -> f64 {
    let layers = StageContext {
        index: stage,
        stages,
        rank: 0,
        device: Device::flex(),
        cut: None,
        group: Default::default(),
        replicas: Default::default(),
    }
    .layers(LAYERS);
    let (mut deferred, mut all) = (0, 0);
    for layer in layers.filter(|&layer| layer != 3) {
        let weight = if layer == 4 { 0 } else { WIDTH * WIDTH };
        let bias = if layer % 2 == 0 { WIDTH } else { 0 };
        all += weight + bias + 3 * WIDTH;
        deferred += weight + if layer == 4 { 0 } else { bias } + 3 * WIDTH;
    }
    deferred as f64 / all.max(1) as f64
}

#[test]
fn a_stack_with_tables_and_frozen_layers_equals_the_plain_loop_bit_for_bit() {
    let new = |samples: usize| Stacks {
        x: draw(1, [samples, WIDTH]),
        ids: Tensor::<1, Int>::arange(0..samples as i64, &Device::flex()).remainder_scalar(3).reshape([samples, 1]),
        target: draw(2, [samples, WIDTH]),
    };
    assert_all::<Stacks>(new, stack_share);
}

#[test]
fn a_convolutional_model_equals_the_plain_loop_bit_for_bit() {
    let new = |samples: usize| Convolutions { x: draw(1, [samples, 2, 4, 5]), target: draw(2, [samples, 2, 4, 5]) };
    assert_all::<Convolutions>(new, |_, _| 1.0);
}

#[test]
fn a_schedule_that_does_not_split_defers_nothing() {
    let builder = builder::<Convolutions>(by_name("1F1B").unwrap().as_ref(), Size::new(2, 4));
    let case = Convolutions { x: draw(1, [4, 2, 4, 5]), target: draw(2, [4, 2, 4, 5]) };
    let mut pipeline = builder.build().unwrap();
    assert_equal(&case, &mut pipeline, &Plain::new(&case, 4, 4), "1F1B");
    assert!(pipeline.engines().unwrap().iter().all(|(_, report)| report.deferred.is_none()));
}
