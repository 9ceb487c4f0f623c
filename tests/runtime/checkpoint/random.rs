//! Over random cuts, uneven batches and random choices of recomputed stages: a job that moves to another cut
//! half-way equals the plain loop bit for bit.

use super::RATE;
use crate::cases::{Case, Stack, range, read, sizes};
use burn::optim::AdamWConfig;
use burn::tensor::Device;
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Accumulation, SplitBackward};
use burn_pipeline::train::{Checkpoints, Pipeline};
use pipeline_tests::mlp;
use pipeline_tests::reference::Reference;
use proptest::prelude::{ProptestConfig, Strategy, any, prop_oneof};
use proptest::strategy::Just;
use proptest::{prop_assert_eq, proptest};
use tempfile::tempdir;

/// A cut with random boundaries.
#[derive(Clone, Debug)]
struct Cut {
    schedule: &'static str,
    size: Size,
    /// The first layer of each stage; a stage ends where the next one starts.
    starts: Vec<usize>,
    recomputed: Vec<bool>,
    captured: bool,
}

fn cut() -> impl Strategy<Value = Cut> {
    let schedule = prop_oneof![Just("GPipe"), Just("1F1B"), Just("Interleaved1F1B"), Just("ZBVZeroBubble")];
    let boundaries = proptest::collection::vec(0..=mlp::LAYERS, 7);
    let choices = proptest::collection::vec(any::<bool>(), 8);
    (schedule, 1..=4usize, 1..=5usize, boundaries, choices, any::<bool>()).prop_map(
        |(schedule, ranks, microbatches, boundaries, recomputed, captured)| {
            let chunks = if ["GPipe", "1F1B"].contains(&schedule) { 1 } else { 2 };
            // Stages may be empty: they pass on their input.
            let mut starts = boundaries[..ranks * chunks - 1].to_vec();
            starts.push(0);
            starts.sort_unstable();
            Cut { schedule, size: Size { ranks, chunks, microbatches }, starts, recomputed, captured }
        },
    )
}

impl Cut {
    fn pipeline(&self) -> Pipeline {
        let (starts, recomputed) = (self.starts.clone(), self.recomputed.clone());
        let split = if self.captured { SplitBackward::Auto } else { SplitBackward::Eager };
        let builder = Pipeline::builder().schedule(self.schedule, self.size).split(split);
        let builder = builder.devices(vec![Device::flex()]).accumulation(Accumulation::Ordered);
        let builder = builder.optimizer(|| AdamWConfig::new().init());
        let stages = builder.stages(move |at| {
            let end = starts.get(at.index + 1).copied().unwrap_or(mlp::LAYERS);
            mlp::stage_of(starts[at.index]..end, at).recomputed(recomputed[at.index])
        });
        stages.build().unwrap()
    }
}

/// One step of a pipeline and of the plain loop: loss and weights.
fn step(
    pipeline: &mut Pipeline,
    cut: &Cut,
    plain: &mut Reference<mlp::Mlp>,
    samples: usize,
) -> [(f64, Vec<Vec<f32>>); 2] {
    let (case, sizes) = (Stack::new(samples), sizes(samples, cut.size.microbatches.min(samples)));
    let expected = plain.step(&sizes, RATE, None, |model, i| case.loss(model, range(&sizes, i))).loss;
    let loss = pipeline.step(case.batch(), RATE).unwrap().loss;
    let weights = pipeline.weights().unwrap().iter().flatten().map(read).collect();
    [(loss, weights), (expected, plain.weights())]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_job_that_moves_to_another_cut_half_way_is_the_plain_loop(
        first in cut(),
        second in cut(),
        samples in proptest::collection::vec(1..=7usize, 3),
    ) {
        let folder = tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path());
        let (mut plain, mut pipeline) = (Reference::new(Stack::new(1).model()), first.pipeline());
        for &samples in &samples[..2] {
            let [got, expected] = step(&mut pipeline, &first, &mut plain, samples);
            prop_assert_eq!(got, expected);
        }
        pipeline.save(&checkpoints, &()).unwrap();
        drop(pipeline);
        let mut pipeline = second.pipeline();
        pipeline.load(&checkpoints.latest().unwrap()).unwrap();
        let [got, expected] = step(&mut pipeline, &second, &mut plain, samples[2]);
        prop_assert_eq!(got, expected);
    }
}
