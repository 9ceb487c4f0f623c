//! Checkpoints: resumed on any cut, killed while they are written, damaged on disk.

mod base;
mod damage;
mod draws;
mod export;
mod folder;
mod groups;
mod halves;
mod kill;
mod names;
mod panics;
mod pretrained;
mod pretrained_base;
mod random;
mod ranges;
mod resume;
mod tied;
mod types;

pub(crate) use export::on_each_rank;

use crate::cases::{Case, Text};
use burn::optim::AdamWConfig;
use burn_pipeline::schedule::{Chunks, Size, by_name};
use burn_pipeline::stage::Accumulation;
use burn_pipeline::train::{Builder, Pipeline};
use pipeline_tests::device::device;

const RATE: f64 = 1e-2;
const SAMPLES: usize = 6;

/// A cut of the small GPT: a schedule, its ranks and chunks.
#[derive(Clone, Copy, Debug)]
struct Cut {
    schedule: &'static str,
    ranks: usize,
    chunks: usize,
}

/// The schedules to test on 1 to 4 ranks, with at least one layer per stage.
fn cuts() -> Vec<Cut> {
    let mut cuts = Vec::new();
    for schedule in ["GPipe", "1F1B", "Interleaved1F1B", "ZBVZeroBubble"] {
        for ranks in 1..=4 {
            let chunks = match by_name(schedule).unwrap().info().chunks {
                Chunks::Exactly(chunks) => chunks,
                Chunks::Any => 2,
            };
            cuts.push(Cut { schedule, ranks, chunks });
        }
    }
    cuts
}

impl Cut {
    fn builder(self) -> Builder {
        let size = Size { ranks: self.ranks, chunks: self.chunks, microbatches: SAMPLES };
        let builder = Pipeline::builder().schedule(self.schedule, size);
        let builder = builder.devices(vec![device()]).accumulation(Accumulation::Ordered);
        builder.stages(Text::stage).optimizer(|| AdamWConfig::new().init())
    }

    fn pipeline(self) -> Pipeline {
        self.builder().build().unwrap()
    }
}

/// The bits of a pipeline's weights.
fn weights(pipeline: &mut Pipeline) -> Vec<Vec<u32>> {
    let bits = |weight: &burn_pipeline::payload::AnyTensor| {
        crate::cases::read(weight).into_iter().map(f32::to_bits).collect::<Vec<u32>>()
    };
    pipeline.weights().unwrap().iter().flatten().map(bits).collect()
}
