//! Weight gradients that are merged over microbatches in half precision: rows are widened before they are multiplied,
//! so only the order of additions differs, and a gradient is rounded less often than in the plain loop.

use super::{Plain, RATE, batch, builder, data, precision, weights};
use burn::tensor::FloatDType;
use burn_pipeline::execute::Tuning;
use burn_pipeline::stage::{Accumulation, SplitBackward};

const STEPS: usize = 4;

/// Losses of some steps, and the weights after them.
fn trained(ranks: usize, half: (FloatDType, f64), merge_weights: bool, compile: bool) -> (Vec<f64>, Vec<f32>) {
    let builder = builder("ZBH1", ranks, 1, precision(half.0, half.1)).accumulation(Accumulation::AsTheyCome);
    let builder = builder.tuning(Tuning { merge_weights, ..Tuning::default() }).compile(compile);
    let mut pipeline = builder.split(SplitBackward::Captured).build().unwrap();
    let losses = (0..STEPS).map(|step| pipeline.step(batch(step), RATE).unwrap().loss).collect();
    (losses, weights(&mut pipeline))
}

#[test]
fn merged_weight_gradients_train_as_the_written_plain_loop_within_some_roundings() {
    for half in [(FloatDType::BF16, 1.0), (FloatDType::F16, 1024.0)] {
        let mut plain = Plain::new(half.0, half.1);
        let expected: Vec<f64> = (0..STEPS).map(|step| plain.step(data(step))).collect();
        for ranks in [2, 4] {
            for compile in [false, true] {
                let of = format!("{half:?}, {ranks} ranks, compiled: {compile}");
                let merged = trained(ranks, half, true, compile);
                assert!(merged != trained(ranks, half, false, compile), "{of}: nothing was merged");
                let losses = merged.0.iter().zip(&expected).map(|(a, b)| (a - b).abs() / b).fold(0.0, f64::max);
                println!("{of}: losses differ by {losses:.1e}");
                assert!(losses <= 2f64.powi(-8), "{of}: {:?} for {expected:?}", merged.0);
            }
        }
    }
}
