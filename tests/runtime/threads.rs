//! Several compute threads per rank: two runs of one program give the same losses, norms and weights, bit for bit.
//!
//! The model has a parameter of more than 2^22 elements. Burn's Flex sums that many in several threads, in an order
//! that depends on which thread is free first.

use crate::cases::{noise, read};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Device, Tensor};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Batch, Stage, StageBox, init_seeded};
use burn_pipeline::train::{Builder, Pipeline, StageContext};

const NARROW: usize = 16;
const WIDE: usize = 2304;
const SAMPLES: usize = 4;
/// The most elements that Flex always adds in one order.
const PIECE: usize = (1 << 22) - 1;

/// A stage with one large weight of 2304 x 2304 elements between two small ones.
#[derive(Module, Debug)]
struct Large {
    layers: Vec<Linear>,
}

impl Stage for Large {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.layers.iter().fold(x, |x, layer| layer.forward(x).tanh())
    }
}

fn stage(at: &StageContext) -> StageBox {
    let layer = |seed, [from, to]: [usize; 2]| {
        init_seeded(10 * at.index as u64 + seed, &at.device, |device| LinearConfig::new(from, to).init(device))
    };
    let widths = [[NARROW, WIDE], [WIDE, WIDE], [WIDE, NARROW]];
    let large = Large { layers: (0..).zip(widths).map(|(seed, widths)| layer(seed, widths)).collect() };
    match at.is_last() {
        false => StageBox::new(large),
        true => StageBox::with_loss(large, |y: Tensor<2>, t: Tensor<2>| (y - t).square().mean()),
    }
}

fn builder(threads: usize) -> Builder {
    let builder = Pipeline::builder().schedule("1F1B", Size::new(2, 2)).devices(vec![Device::flex()]);
    builder.stages(stage).threads(threads).clip_norm(0.1)
}

fn batch(seed: u64) -> Batch {
    let rows = |seed| Tensor::<1>::from_floats(&*noise(seed, SAMPLES * NARROW), &Device::flex());
    let rows = |seed| rows(seed).reshape([SAMPLES, NARROW]);
    Batch::new(rows(seed)).target(rows(seed + 50))
}

#[test]
fn the_norm_of_large_parameters_is_the_same_each_time_and_added_in_order() {
    // Nothing is clipped, and at a rate of 0 every step has the same gradients.
    let builder = builder(2).clip_norm(f64::INFINITY).optimizer(|| SgdConfig::new().init());
    let mut pipeline = builder.build().unwrap();
    let norms: Vec<f64> = (0..12).map(|_| pipeline.step(batch(1), 0.0).unwrap().gradient_norm.unwrap()).collect();
    assert!(norms.iter().all(|norm| *norm == norms[0]), "{norms:?}");
    pipeline.accumulate(batch(1)).unwrap();
    let gradients = pipeline.take_gradients().unwrap();
    // The same squares by Burn's own sum over pieces that it adds in one thread, in order.
    let sum = |piece: &[f32]| {
        let piece = Tensor::<1>::from_floats(piece, &Device::flex());
        f64::from((piece.clone() * piece).sum().into_scalar::<f32>())
    };
    let squares = gradients.iter().flatten().flatten().map(|g| read(g).chunks(PIECE).map(sum).sum::<f64>());
    assert_eq!(norms[0], squares.sum::<f64>().sqrt());
}

#[test]
fn two_runs_with_two_threads_a_rank_are_equal_to_the_last_bit_clipping_included() {
    let run = || {
        let mut pipeline = builder(2).optimizer(|| AdamWConfig::new().init()).build().unwrap();
        let step = |seed| {
            let report = pipeline.step(batch(seed), 1e-2).unwrap();
            (report.loss, report.gradient_norm)
        };
        let reports: Vec<(f64, Option<f64>)> = (1..=6).map(step).collect();
        assert!(reports.iter().all(|(_, norm)| *norm > Some(0.1)), "nothing is clipped: {reports:?}");
        (reports, pipeline.weights().unwrap().iter().flatten().map(read).collect::<Vec<_>>())
    };
    let (first, second) = (run(), run());
    assert_eq!(first.0, second.0);
    assert!(first.1 == second.1, "weights differ");
}
