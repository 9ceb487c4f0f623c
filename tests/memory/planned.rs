//! The peaks of compiled stages, known before they run, equal the measured ones.

use crate::heap::{HEAP, turn};
use crate::held::{ROWS, WIDTH, batch_of, wide};
use burn::tensor::{Device, Tensor};
use burn_pipeline::cost::StageCost;
use burn_pipeline::schedule::{Chunks, Size, by_name};
use burn_pipeline::stage::{SplitBackward, StageBox};
use burn_pipeline::train::{Builder, Pipeline, StepReport};

const SAMPLES: usize = 16;
/// What is not counted: a thread's buffers for packed operands and tiles, and small tensors. It is less than one
/// activation.
const THREAD: f64 = 1.5 * 1024.0 * 1024.0;

fn builder(schedule: &str) -> Builder {
    let chunks = match by_name(schedule).unwrap().info().chunks {
        Chunks::Exactly(chunks) => chunks,
        Chunks::Any => 2,
    };
    Pipeline::builder()
        .schedule(schedule, Size::new(2, 2).with_chunks(chunks))
        .devices(vec![Device::flex()])
        .stages(|at| {
            let wide = wide(&at.device);
            match at.is_last() {
                true => StageBox::with_loss(wide, |y: Tensor<3>, target: Tensor<3>| (y - target).square().mean()),
                false => StageBox::new(wide),
            }
        })
        .split(SplitBackward::Captured)
        .compile(true)
}

/// The peaks of a stage's actions, by name.
fn peaks(cost: &StageCost) -> [(&'static str, Option<f64>); 4] {
    [
        ("F", cost.forward_peak_bytes),
        ("I", cost.input_peak_bytes),
        ("W", cost.weight_peak_bytes),
        ("B", cost.backward_peak_bytes),
    ]
}

#[test]
fn the_peaks_of_compiled_stages_are_those_that_a_meter_reads() {
    let _turn = turn();
    for schedule in ["1F1B", "ZBVZeroBubble"] {
        let measured = builder(schedule).measure_memory(batch_of(SAMPLES), &HEAP).unwrap();
        let mut pipeline = builder(schedule).build().unwrap();
        let report = pipeline.accumulate(batch_of(2 * SAMPLES)).unwrap();
        let placement = pipeline.plan(2).unwrap().plan().placement().clone();
        let planned = StepReport::profile(&placement, &[report]).unwrap();
        let mut compared = 0;
        // The first stage reads slices of the batch, which the caller owns.
        for (stage, (planned, measured)) in planned.stages().iter().zip(measured.stages()).enumerate().skip(1) {
            let last = stage + 1 == placement.stages();
            for ((action, planned), (_, measured)) in peaks(planned).into_iter().zip(peaks(measured)) {
                let (planned, Some(measured)) = (planned.unwrap(), measured) else { continue };
                // On Flex, the sender owns received tensors and the caller owns the target. The plan counts both
                // while they are read.
                let received = (SAMPLES * ROWS * WIDTH * size_of::<f32>()) as f64;
                let measured = measured + if last && action == "F" { 2.0 * received } else { received };
                println!("{schedule}, stage {stage}, {action}: planned {planned} bytes, measured {measured}");
                assert!(
                    (planned..planned + THREAD).contains(&measured),
                    "{schedule}, stage {stage}, {action}: planned {planned} bytes, measured {measured}"
                );
                compared += 1;
            }
        }
        assert!(compared >= 2, "{schedule}: {compared}");
    }
}
