//! Tensor-parallel stages whose ranks share one CubeCL device, compared with one rank on it and with the plain
//! loop.
//!
//! A group of two adds each sum in two parts, so its numbers match one rank's up to rounding. Grids and engines
//! match each other bit for bit. On CubeCL's CPU runtime matmuls are slow: there, one step of four layers replaces
//! the decoder and is compared with the plain loop alone.

#[allow(dead_code, reason = "the tests of groups use all of it")]
#[cfg(any(feature = "wgpu", feature = "cuda"))]
#[path = "../tensor/model.rs"]
mod model;
#[allow(dead_code, reason = "as above")]
#[cfg(any(feature = "wgpu", feature = "cuda"))]
#[path = "../tensor/plain.rs"]
mod plain;

use crate::{coarser, devices, turn};
use burn::module::Module;
use burn::nn::LinearConfig;
use burn::optim::SgdConfig;
use burn::tensor::{Device, Distribution, Tensor};
use burn_pipeline::nn::{ColumnLinear, RowLinear};
use burn_pipeline::payload::AnyTensor;
use burn_pipeline::stage::{Accumulation, SplitBackward, Stage, StageBox};
use burn_pipeline::{Batch, Pipeline, Size, StageContext, init_seeded};
use pipeline_tests::reference::Reference;

const STEPS: usize = 2;

/// The losses of some steps, and the weights after them.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Trained {
    pub(crate) losses: Vec<f32>,
    pub(crate) weights: Vec<f32>,
}

impl Trained {
    /// Asserts equality up to the device's rounding. With f32's, as on Flex: losses to 1e-5 of their size, weights to
    /// 2e-6.
    pub(crate) fn assert_close(&self, expected: &Self, coarser: f32, place: &str) {
        let apart = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let lengths = |of: &Self| (of.losses.len(), of.weights.len());
        assert_eq!(lengths(self), lengths(expected), "{place}");
        let (losses, weights) = (apart(&self.losses, &expected.losses), apart(&self.weights, &expected.weights));
        assert!(
            losses < 1e-5 * coarser * expected.losses[0],
            "{place}: losses {:?} and {:?}",
            self.losses,
            expected.losses
        );
        assert!(weights < 2e-6 * coarser, "{place}: weights differ by {weights}");
    }
}

/// Returns true for CubeCL's CPU runtime.
fn is_slow(device: &Device) -> bool {
    format!("{device:?}").contains("Cpu")
}

/// Asserts that all grids and engines give the expected numbers, and the same bits as each other.
fn all_equal(expected: &[&Trained], device: &Device, train: impl Fn((usize, usize, usize), SplitBackward) -> Trained) {
    let [eager, captured] = [SplitBackward::Eager, SplitBackward::Captured];
    let coarser = coarser(device);
    let all = [((1, 1, 2), eager), ((2, 1, 2), captured), ((1, 1, 2), captured), ((2, 1, 2), eager)];
    let mut first: Option<Trained> = None;
    for (grid, split) in all.into_iter().take(if is_slow(device) { 2 } else { 4 }) {
        let place = format!("{grid:?}, {split:?} on {device:?}");
        let got = train(grid, split);
        expected.iter().for_each(|expected| got.assert_close(expected, coarser, &place));
        let first = first.get_or_insert_with(|| got.clone());
        assert!(got == *first, "{place}: different bits, losses {:?} and {:?}", got.losses, first.losses);
    }
}

#[derive(Module, Debug)]
struct Pair {
    up: ColumnLinear,
    down: RowLinear,
}

#[derive(Module, Debug)]
struct Tower {
    pairs: Vec<Pair>,
}

impl Tower {
    fn new(at: &StageContext) -> Self {
        let linear = |seed, from, to| init_seeded(seed, &at.device, |device| LinearConfig::new(from, to).init(device));
        let pair = |place: usize| Pair {
            up: ColumnLinear::cut(linear(2 * place as u64, 4, 8), &at.group),
            down: RowLinear::cut(linear(2 * place as u64 + 1, 8, 4), &at.group),
        };
        Self { pairs: at.layers(2).map(pair).collect() }
    }
}

impl Stage for Tower {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.pairs.iter().fold(x, |x, pair| pair.down.forward(pair.up.forward(x)))
    }
}

fn loss(y: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
    (y - target).square().mean()
}

#[test]
fn layers_of_groups_train_as_one_rank_and_the_plain_loop_do() {
    let _turn = turn();
    for device in devices() {
        let steps = if is_slow(&device) { 1 } else { STEPS };
        let microbatches = steps;
        let draw = || Tensor::<2>::random([2 * microbatches, 4], Distribution::Uniform(-1.0, 1.0), &device);
        let (x, target) = (draw(), draw());
        let train = |(ranks, replicas, members), split| {
            let mut pipeline = Pipeline::builder()
                .schedule("1F1B", Size::new(ranks, microbatches))
                .devices(vec![device.clone()])
                .stages(|at| match at.is_last() {
                    true => StageBox::with_loss(Tower::new(at), loss),
                    false => StageBox::new(Tower::new(at)),
                })
                .optimizer(|| SgdConfig::new().init())
                .accumulation(Accumulation::Ordered)
                .data_parallel(replicas)
                .tensor_parallel(members)
                .split(split)
                .build()
                .unwrap();
            let mut step = || pipeline.step(Batch::new(x.clone()).target(target.clone()), 0.1).unwrap().loss as f32;
            let losses = (0..steps).map(|_| step()).collect();
            let read = |tensor: &AnyTensor| tensor.to_data().unwrap().iter::<f32>().collect::<Vec<_>>();
            Trained { losses, weights: pipeline.weights().unwrap().iter().flatten().flat_map(read).collect() }
        };
        let whole = StageContext { device: device.clone().autodiff(), ..pipeline_tests::reference::whole() };
        let mut reference = Reference::resumed(Tower::new(&whole), SgdConfig::new().init());
        let step = |_| {
            let of = |model: &Tower, i: usize| {
                let rows = |tensor: &Tensor<2>| tensor.clone().narrow(0, 2 * i, 2).autodiff();
                let pairs = model.pairs.iter();
                let y = pairs.fold(rows(&x), |x, pair| pair.down.linear.forward(pair.up.linear.forward(x)));
                loss(y, rows(&target))
            };
            reference.step(&vec![2; microbatches], 0.1, None, of).loss as f32
        };
        let losses = (0..steps).map(step).collect();
        let plain = Trained { losses, weights: reference.weights().concat() };
        assert!(plain.losses[steps - 1] <= plain.losses[0], "the loss does not fall: {:?}", plain.losses);
        if is_slow(&device) {
            all_equal(&[&plain], &device, train);
        } else {
            all_equal(&[&train((1, 1, 1), SplitBackward::Eager), &plain], &device, train);
        }
    }
}

#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod decoder {
    use super::model::{Grid, Signal, builder_of, weights};
    use super::plain::{Config, Plain};
    use super::{STEPS, Trained, all_equal};
    use crate::{devices, is_fast, turn};
    use burn::optim::SgdConfig;
    use burn::tensor::Device;
    use burn_pipeline::stage::{Accumulation, SplitBackward};
    use burn_pipeline::{Batch, Size};
    use pipeline_tests::reference::Reference;

    /// One block per stage, for two stages.
    const TINY: Config =
        Config { width: 8, heads: 2, hidden: 8, vocab: 8, seq: 4, blocks: 2, seed: 3, sequence: false };
    const SAMPLES: usize = 4;
    const MICROBATCHES: usize = 2;
    const RATE: f64 = 0.05;

    fn plain_loop(config: Config, device: &Device) -> Trained {
        let mut reference = Reference::resumed(config.plain_on(&device.clone().autodiff()), SgdConfig::new().init());
        let (tokens, targets) = config.data(SAMPLES);
        let (tokens, targets) = (tokens.to_device(device), targets.to_device(device));
        let size = SAMPLES / MICROBATCHES;
        let step = |_| {
            let loss = |model: &Plain, i: usize| {
                let rows = i * size..(i + 1) * size;
                let (tokens, targets) = (tokens.clone().slice([rows.clone()]), targets.clone().slice([rows]));
                model.loss(tokens.autodiff(), targets.autodiff())
            };
            reference.step(&[size; MICROBATCHES], RATE, None, loss).loss as f32
        };
        let losses = (0..STEPS).map(step).collect();
        Trained { losses, weights: reference.weights().concat() }
    }

    fn trained(config: Config, device: &Device, grid: Grid, split: SplitBackward) -> Trained {
        let builder = builder_of(config, ("1F1B", 1), grid)
            .schedule("1F1B", Size::new(grid.0, MICROBATCHES))
            .devices(vec![device.clone()])
            .accumulation(Accumulation::Ordered)
            .split(split);
        let mut pipeline = builder.build().unwrap();
        let (tokens, targets) = config.data(SAMPLES);
        let batch =
            || Batch::new(Signal::Tokens(tokens.clone().to_device(device))).target(targets.clone().to_device(device));
        let losses = (0..STEPS).map(|_| pipeline.step(batch(), RATE).unwrap().loss as f32).collect();
        for (stage, report) in pipeline.engines().unwrap() {
            assert_eq!(report.captured, split == SplitBackward::Captured, "stage {stage}: {}", report.reason);
        }
        Trained { losses, weights: weights(&mut pipeline).concat() }
    }

    fn train_as_one_rank_does(config: Config) {
        let _turn = turn();
        for device in devices().iter().filter(|device| is_fast(device)) {
            let plain = plain_loop(config, device);
            assert!(plain.losses[1] < plain.losses[0], "the loss does not fall: {:?}", plain.losses);
            let one = trained(config, device, (1, 1, 1), SplitBackward::Captured);
            all_equal(&[&one, &plain], device, |grid, split| trained(config, device, grid, split));
        }
    }

    #[test]
    fn trains_as_one_rank_and_the_plain_loop_do() {
        train_as_one_rank_does(TINY);
    }

    #[test]
    fn with_the_sequence_cut_trains_as_one_rank_and_the_plain_loop_do() {
        train_as_one_rank_does(Config { sequence: true, ..TINY });
    }
}
