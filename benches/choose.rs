//! Checks that a pipeline that chooses its schedule ends no slower than 1F1B, over many choices, each from scratch.
//!
//! `cargo bench -p benches --bench choose [-- --runs N --rounds N]`
//!
//! 1. The model is a GPT whose vocabulary makes its last layer the heaviest, on two ranks.
//! 2. In each run an [`AutoPipeline`] starts with an even cut, measures, plans and tries plans until it has
//!    decided.
//! 3. Then it alternates with 1F1B on the even cut, and on the optimal cut for the model's measured layers. A run
//!    is *slower* if its median step is longer than the median of 1F1B on the even cut, which a program without a
//!    choice would use.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints and may stop")]

use benches::flags::Flags;
use benches::heavy_head::{BLOCKS, batch, builder, config};
use benches::spread::Spread;
use burn_pipeline::cost::{Layers, Partition, PartitionOptions, Pattern};
use burn_pipeline::plan::Placement;
use burn_pipeline::schedule::Size;
use burn_pipeline::train::{AutoOptions, AutoPipeline, Decision};
use std::time::Instant;

const SIZE: Size = Size { ranks: 2, chunks: 1, microbatches: 8 };
const RATE: f64 = 1e-4;
/// The rounds that are not counted.
const WARM_UP: usize = 2;

fn even() -> Partition {
    Partition::even(BLOCKS, SIZE.ranks).unwrap()
}

/// The best cut for 1F1B by the layers' measured costs.
fn best_cut() -> Partition {
    let kinds: Pattern = "L".repeat(BLOCKS).parse().unwrap();
    let finest = builder(Partition::even(BLOCKS, BLOCKS).unwrap());
    let layers: Layers = finest.measure_layers(batch(1), kinds.kinds(), 5).unwrap().layers;
    let placement = Placement::looped(SIZE.ranks, SIZE.chunks).unwrap();
    Partition::optimal(&layers, &placement, &PartitionOptions::default()).unwrap().partition
}

fn one_f_one_b(cut: Partition) -> AutoPipeline {
    AutoPipeline::fixed(builder(cut).schedule("1F1B", SIZE).build().unwrap())
}

/// A pipeline that has decided.
fn chosen() -> AutoPipeline {
    let options = AutoOptions { layers: Some(BLOCKS), ..AutoOptions::default() };
    let mut pipeline = AutoPipeline::new(builder(even()), SIZE, options).unwrap();
    while matches!(pipeline.decision(), Decision::Measuring | Decision::Trying(_)) {
        pipeline.step(batch(SIZE.microbatches), RATE).unwrap();
    }
    pipeline
}

fn main() {
    let flags = Flags::read(&[("--runs N", "runs; 10 if absent"), ("--rounds N", "rounds of a run; 9 if absent")]);
    let (runs, rounds) = (flags.number("--runs", 10), flags.number("--rounds", 9));
    let cut = best_cut();
    let mut fixed = [one_f_one_b(even()), one_f_one_b(cut.clone())];
    println!("2 ranks, {} microbatches of one sequence, {:?}; medians of {rounds}\n", SIZE.microbatches, config());
    println!("| run | chosen | step ms (min..max) | 1F1B, {} | 1F1B, {cut} | chosen / first 1F1B |", even());
    println!("|---|---|---|---|---|---|");
    let mut slower = 0;
    for run in 1..=runs {
        let mut auto = chosen();
        let what = match auto.decision() {
            Decision::Switched(choice) | Decision::Kept(choice) => choice.running.to_string(),
            other => other.to_string(),
        };
        let [first, second] = &mut fixed;
        let mut seconds = [const { Vec::new() }; 3];
        for round in 0..rounds + WARM_UP {
            for (pipeline, seconds) in [&mut auto, first, second].into_iter().zip(&mut seconds) {
                let began = Instant::now();
                pipeline.step(batch(SIZE.microbatches), RATE).unwrap();
                if round >= WARM_UP {
                    seconds.push(began.elapsed().as_secs_f64());
                }
            }
        }
        let [auto, first, second] = seconds.map(|seconds| Spread::of(&seconds));
        let ratio = auto.median / first.median;
        slower += usize::from(ratio > 1.0);
        println!("| {run} | {what} | {auto} | {first} | {second} | {ratio:.3} |");
    }
    println!("\nslower than 1F1B on the even cut in {slower} of {runs} runs");
}
