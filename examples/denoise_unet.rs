//! Trains a U-Net over four ranks to remove noise from images of discs. Its skip connections go directly from the
//! stage that computes them to the stage that reads them.
//!
//! `cargo run --release -p pipeline-examples --example denoise_unet`. The model is in `src/unet.rs`, as a list of
//! layers.

#![allow(clippy::print_stdout, reason = "it is a program")]

use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor, TensorData};
use burn_pipeline::{Batch, Pipeline, Size};
use pipeline_examples::unet::UNetConfig;

const SIDE: usize = 16;
const RANKS: usize = 4;
const MICROBATCHES: usize = 8;

/// A number in [0, 1) for each pair, equal on every run.
fn chance(a: usize, b: usize) -> f32 {
    let mixed = (a as u64 * 0x9e37_79b9 + b as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((mixed ^ mixed >> 31).wrapping_mul(0x94d0_49bb_1331_11eb) >> 40) as f32 / (1u32 << 24) as f32
}

/// Discs with random positions and sizes, and the same with noise.
fn discs(seed: usize, count: usize, device: &Device) -> (Tensor<4>, Tensor<4>) {
    let (mut clean, mut noisy) = (Vec::new(), Vec::new());
    for sample in seed * count..(seed + 1) * count {
        let [x, y, r] = std::array::from_fn(|i| chance(sample, i));
        let (x, y, r) = ((0.3 + 0.4 * x) * SIDE as f32, (0.3 + 0.4 * y) * SIDE as f32, 2.0 + 3.0 * r);
        for pixel in 0..SIDE * SIDE {
            let (row, column) = ((pixel / SIDE) as f32, (pixel % SIDE) as f32);
            let value = if (row - y).hypot(column - x) < r { 1.0 } else { 0.0 };
            clean.push(value);
            noisy.push(value + 1.5 * (chance(sample, 10 + pixel) - 0.5));
        }
    }
    let tensor = |values| Tensor::from_data(TensorData::new(values, [count, 1, SIDE, SIDE]), device);
    (tensor(clean), tensor(noisy))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (device, model) = (Device::flex(), UNetConfig::new().model());
    let layers = model.layers();
    let mut pipeline = Pipeline::builder()
        .layers(model)
        .schedule("1F1B", Size::new(RANKS, MICROBATCHES))
        .optimizer(|| AdamWConfig::new().init())
        .devices(vec![device.clone()])
        .build()?;
    let skips = pipeline.plan(MICROBATCHES)?.plan().skips().to_vec();
    println!("{layers} layers in {RANKS} stages; values that skip stages: {skips:?}");
    let seen = discs(999, 64, &device);
    let noise = (seen.0.clone() - seen.1.clone()).square().mean().into_scalar::<f32>();
    println!("mean squared error of the noise: {noise:.4}");
    for step in 1..=200 {
        let (clean, noisy) = discs(step, 32, &device);
        pipeline.step(Batch::new(noisy).target(clean), 3e-3)?;
        if step % 40 == 0 {
            let report = pipeline.eval(Batch::new(seen.1.clone()).target(seen.0.clone()))?;
            println!("step {step}: mean squared error {:.4}", report.loss.unwrap_or(f64::NAN));
        }
    }
    Ok(())
}
