//! Layers of a list ([`Sequential`]) that are cut over a group train as the plain loop does.

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig, SwiGlu, SwiGluConfig};
use burn::optim::SgdConfig;
use burn::tensor::activation::silu;
use burn::tensor::{Device, Tensor};
use burn_pipeline::layers::{Layer, LayerGroups, Model, Sequential};
use burn_pipeline::nn::GatedFeedForward;
use burn_pipeline::stage::init_seeded;
use burn_pipeline::{Batch, Pipeline, Size};
use pipeline_tests::device::device;
use pipeline_tests::noise::noise;
use pipeline_tests::reference::Reference;

const WIDTH: usize = 8;
const INNER: usize = 16;
pub(crate) const LAYERS: usize = 4;
const SAMPLES: usize = 8;
pub(crate) const STEPS: usize = 4;

/// An ordinary block.
#[derive(Module, Debug)]
pub(crate) struct Block {
    pub(crate) norm: LayerNorm,
    pub(crate) gated: SwiGlu,
    pub(crate) down: Linear,
}

/// The same block, cut.
#[derive(Module, Debug)]
pub(crate) struct Piece {
    pub(crate) norm: LayerNorm,
    pub(crate) feed: GatedFeedForward,
}

#[derive(Module, Debug)]
pub(crate) struct Plain {
    pub(crate) blocks: Vec<Block>,
}

pub(crate) fn block(device: &Device) -> Block {
    Block {
        norm: LayerNormConfig::new(WIDTH).init(device),
        gated: SwiGluConfig::new(WIDTH, INNER).init(device),
        down: LinearConfig::new(INNER, WIDTH).init(device),
    }
}

impl Plain {
    pub(crate) fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.blocks.iter().fold(x, |x, block| {
            let normal = block.norm.forward(x.clone());
            let gate = silu(block.gated.linear_inner.forward(normal.clone()));
            x + block.down.forward(gate * block.gated.linear_outer.forward(normal))
        })
    }
}

pub(crate) fn loss(y: Tensor<2>, wanted: Tensor<2>) -> Tensor<1> {
    (y - wanted).square().mean()
}

fn model() -> Model {
    let cut = |Block { norm, gated, down }: Block, at: &LayerGroups| Piece {
        norm,
        feed: GatedFeedForward::cut(gated, down, &at.group),
    };
    let forward = |own: &Piece, x: Tensor<2>| x.clone() + own.feed.forward(own.norm.forward(x));
    Sequential::new().repeat(LAYERS, Layer::cut("blocks", |at| block(&at.device), cut, forward)).loss(loss)
}

pub(crate) fn data(step: usize) -> [Tensor<2>; 2] {
    [3, 60].map(|seed| {
        let values = noise(seed + step as u64, SAMPLES * WIDTH);
        Tensor::<1>::from_floats(&*values, &device()).reshape([SAMPLES, WIDTH])
    })
}

#[test]
fn cut_layers_of_a_list_start_and_train_as_whole_ones() {
    let whole = |layer| init_seeded(layer, &device().autodiff(), block);
    let plain = Plain { blocks: (0..LAYERS as u64).map(whole).collect() };
    let mut plain = Reference::resumed(plain, SgdConfig::new().init());
    let expected: Vec<f64> = (0..STEPS)
        .map(|step| {
            let [x, wanted] = data(step);
            let part = |tensor: &Tensor<2>, i| tensor.clone().narrow(0, 2 * i, 2).autodiff();
            plain.step(&[2; 4], 0.3, None, |plain: &Plain, i| loss(plain.forward(part(&x, i)), part(&wanted, i))).loss
        })
        .collect();
    for (schedule, ranks, members, replicas) in
        [("GPipe", 1, 2, 1), ("1F1B", 2, 2, 1), ("ZBH1", 2, 4, 1), ("1F1B", 2, 2, 2)]
    {
        let mut pipeline = Pipeline::builder()
            .layers(model())
            .schedule(schedule, Size::new(ranks, 4 / replicas))
            .tensor_parallel(members)
            .data_parallel(replicas)
            .devices(vec![device()])
            .optimizer(|| SgdConfig::new().init())
            .build()
            .unwrap();
        for (step, expected) in expected.iter().enumerate() {
            let [x, wanted] = data(step);
            let got = pipeline.step(Batch::new(x).target(wanted), 0.3).unwrap().loss;
            assert!((got - expected).abs() <= 1e-5 * expected, "{schedule}, {members}, {step}: {got}, {expected}");
        }
    }
}
