//! The loss contract holds over replicas: means, sums and weighted sums, batches of different sizes that count as
//! one, and random numbers. Other tests compare one pipeline with the plain loop.

use super::{RATE, difference, gradients, weights};
use crate::contract::{Data, builder};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Accumulation, Reduction};
use burn_pipeline::train::{Builder, Pipeline};
use pipeline_tests::noisy;

/// The loss, the gradients, and the losses of an evaluation of three batches, the last one smaller than two
/// replicas' parts.
fn run(builder: Builder) -> (Vec<f64>, Vec<Vec<f32>>) {
    let data = Data::new(30);
    let mut pipeline = builder.build().unwrap();
    let mut losses = Vec::new();
    for samples in [0..16, 16..29, 29..30] {
        losses.push(pipeline.accumulate(data.batch(samples.clone())).unwrap().loss);
        losses.push(pipeline.eval(data.batch(samples)).unwrap().loss.unwrap());
    }
    (losses, gradients(&mut pipeline))
}

#[test]
fn every_reduction_means_over_replicas_what_it_means_on_one_pipeline() {
    for reduction in [Reduction::Mean, Reduction::Sum, Reduction::Weighted] {
        for schedule in ["1F1B", "ZBVZeroBubble"] {
            let place = format!("{reduction:?}, {schedule}");
            let (losses, alone) = run(builder(schedule, 2, 8, reduction));
            // Ordered sums equal those of one device.
            assert_eq!(
                run(builder(schedule, 2, 4, reduction).data_parallel(2)),
                (losses.clone(), alone.clone()),
                "{place}"
            );
            let as_they_come =
                builder(schedule, 2, 4, reduction).accumulation(Accumulation::AsTheyCome).data_parallel(2);
            for (what, builder) in [("whole", as_they_come.clone()), ("sharded", as_they_come.sharded(true))] {
                let (other, gradients) = run(builder);
                assert_eq!(other, losses, "{place}, {what}");
                let largest = alone.iter().flatten().fold(0.0f32, |largest, g| largest.max(g.abs()));
                let distance = difference(&gradients, &alone);
                // Seventeen roundings of sums in another order.
                assert!(distance <= 17.0 * largest * 2.0f32.powi(-24), "{place}, {what}: {distance} of {largest}");
            }
        }
    }
}

#[test]
fn replicas_draw_what_one_pipeline_draws() {
    let run = |builder: Builder| {
        let mut pipeline: Pipeline = builder.build().unwrap();
        let losses: Vec<f64> = (0..3).map(|step| pipeline.step(noisy::batch(step), RATE).unwrap().loss).collect();
        (losses, weights(&mut pipeline))
    };
    let drawing = || noisy::builder("1F1B").seed(3).stages(noisy::drawing);
    let replicas = || drawing().schedule("1F1B", Size::new(2, 2)).data_parallel(2);
    let alone = run(drawing());
    assert_eq!(run(replicas()), alone);
    assert_ne!(run(replicas().seed(4)), alone);
    let (losses, _) = run(replicas().accumulation(Accumulation::AsTheyCome).sharded(true));
    assert_eq!(losses[0], alone.0[0]);
}
