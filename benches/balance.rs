//! Balance of a cut by measured costs compared with an even cut, for a GPT whose vocabulary makes its last layer
//! the heaviest.
//!
//! `cargo bench -p benches --bench balance [-- --rounds N]`
//!
//! 1. The model's layers are measured one by one (`Builder::measure_layers`): blocks, the first one with the
//!    embedding and the last one with the head.
//! 2. They are cut for two ranks, once evenly by number and once by the optimal partitioner.
//! 3. Both cuts train in alternating rounds with 1F1B. Predicted and measured balance is the busiest rank's work
//!    over the average.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints and may stop")]

use benches::flags::Flags;
use benches::heavy_head::{BLOCKS, batch, builder, config};
use benches::spread::Spread;
use burn_pipeline::cost::{Layers, Partition, PartitionOptions, PartitionReport, Pattern};
use burn_pipeline::plan::Placement;
use burn_pipeline::schedule::Size;
use burn_pipeline::train::{Pipeline, StepReport};
use std::time::Instant;

const RANKS: usize = 2;
const MICROBATCHES: usize = 8;
const RATE: f64 = 1e-4;

fn pipeline(name: &str, size: Size, partition: Partition) -> Pipeline {
    builder(partition).schedule(name, size).build().unwrap()
}

/// The rounds over the layers whose medians are used.
const LAYER_ROUNDS: usize = 5;

/// The costs of every block.
fn measured() -> Layers {
    let kinds: Pattern = "L".repeat(BLOCKS).parse().unwrap();
    let finest = builder(Partition::even(BLOCKS, BLOCKS).unwrap());
    let measured = finest.measure_layers(batch(1), kinds.kinds(), LAYER_ROUNDS).unwrap();
    assert!(measured.uncaptured.is_empty(), "{:?}", measured.uncaptured);
    measured.layers
}

/// The busiest rank's seconds of work over the average, from the timeline.
fn balance(reports: &[StepReport]) -> f64 {
    let mut busy = [0.0; RANKS];
    for event in reports.iter().flat_map(|report| &report.timeline.events) {
        if event.action.tasks().any(|task| task.op().is_compute()) {
            busy[event.rank] += event.end - event.start;
        }
    }
    busy.iter().copied().fold(0.0, f64::max) * RANKS as f64 / busy.iter().sum::<f64>()
}

fn main() {
    let rounds: usize = Flags::read(&[("--rounds N", "rounds; 7 if absent")]).number("--rounds", 7);
    let layers = measured();
    let placement = Placement::looped(RANKS, 1).unwrap();
    let even = Partition::even(BLOCKS, RANKS).unwrap();
    let best = Partition::optimal(&layers, &placement, &PartitionOptions::default()).unwrap().partition;
    let size = Size::new(RANKS, MICROBATCHES);
    let mut rows: Vec<_> = [("even", even), ("optimal", best)]
        .map(|(name, cut)| (name, cut.clone(), pipeline("1F1B", size, cut), Vec::new(), Vec::new()))
        .into();
    for round in 0..rounds + 2 {
        for (_, _, pipeline, seconds, reports) in &mut rows {
            let began = Instant::now();
            let report = pipeline.step(batch(MICROBATCHES), RATE).unwrap();
            if round >= 2 {
                seconds.push(began.elapsed().as_secs_f64());
                reports.push(report);
            }
        }
    }
    println!("{RANKS} ranks, 1F1B, {MICROBATCHES} microbatches of one sequence, {:?}", config());
    println!("| cut | blocks by rank | busiest over average, predicted | measured | step ms (min..max) |");
    println!("|---|---|---|---|---|");
    for (name, cut, _, seconds, reports) in &rows {
        let predicted = PartitionReport::new(&layers, cut, &placement).unwrap().imbalance();
        let steps = Spread::of(seconds);
        println!("| {name} | {cut} | {predicted:.3} | {:.3} | {steps} |", balance(reports));
    }
}
