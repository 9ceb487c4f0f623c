//! The peaks of compiled stages are known before they run, without a meter: those that a meter reads.

use crate::heap::{HEAP, turn};
use crate::held::{ROWS, WIDTH, batch_of, wide};
use burn::tensor::{Device, Tensor};
use burn_pipeline::cost::StageCost;
use burn_pipeline::schedule::{Chunks, Size, by_name};
use burn_pipeline::stage::{SplitBackward, StageBox};
use burn_pipeline::train::{Builder, Pipeline, StepReport};

const SAMPLES: usize = 16;
/// What a thread keeps to pack operands and to run tiles, and what is too small to be counted: less than one activation.
const THREAD: f64 = 1.5 * 1024.0 * 1024.0;

fn builder(family: &str) -> Builder {
    let chunks = match by_name(family).unwrap().family().chunks {
        Chunks::Exactly(chunks) => chunks,
        Chunks::Any => 2,
    };
    Pipeline::builder()
        .schedule(family, Size::new(2, 2).with_chunks(chunks))
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

/// The peaks of a stage's actions, each with its name.
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
    for family in ["1F1B", "ZBVZeroBubble"] {
        let measured = builder(family).measure_memory(batch_of(SAMPLES), &HEAP).unwrap();
        let mut pipeline = builder(family).build().unwrap();
        let report = pipeline.step(batch_of(2 * SAMPLES), 0.0).unwrap();
        let placement = pipeline.plan(2).unwrap().plan().placement().clone();
        let planned = StepReport::profile(&placement, &[report]).unwrap();
        let mut compared = 0;
        // The first stage reads pieces of the batch, which are the caller's.
        for (stage, (planned, measured)) in planned.stages().iter().zip(measured.stages()).enumerate().skip(1) {
            let last = stage + 1 == placement.stages();
            for ((action, planned), (_, measured)) in peaks(planned).into_iter().zip(peaks(measured)) {
                let (planned, Some(measured)) = (planned.unwrap(), measured) else { continue };
                // On Flex what is received is the sender's, and the target the caller's; the plan counts both while they are read.
                let received = (SAMPLES * ROWS * WIDTH * size_of::<f32>()) as f64;
                let measured = measured + if last && action == "F" { 2.0 * received } else { received };
                println!("{family}, stage {stage}, {action}: planned {planned} bytes, measured {measured}");
                assert!(
                    (planned..planned + THREAD).contains(&measured),
                    "{family}, stage {stage}, {action}: planned {planned} bytes, measured {measured}"
                );
                compared += 1;
            }
        }
        assert!(compared >= 2, "{family}: {compared}");
    }
}
