//! Vocabulary parallelism compared with the best cut, for a GPT whose head is the heaviest layer.
//!
//! `cargo bench -p benches --bench vocabulary [-- --ranks N --rounds N]`
//!
//! 1. All layers are measured one by one (`Builder::measure_layers`): embedding, blocks, head.
//! 2. The optimal partitioner cuts all of them for the ranks. For comparison, the blocks alone are cut evenly, and
//!    embedding and head are vocabulary parallel.
//! 3. All train in alternating rounds. The simulator predicts from the layers' costs; the prediction assumes as
//!    many cores as ranks.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints and may stop")]

use benches::flags::Flags;
use benches::heavy_head::{BLOCKS, batch, between, config, tokens, vocabulary};
use benches::spread::Spread;
use burn::optim::AdamWConfig;
use burn::tensor::Device;
use burn_pipeline::cost::{Layers, LinkCosts, Partition, PartitionOptions, Pattern, Profile, VocabularyCost};
use burn_pipeline::plan::{PlacementKind, Transport};
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::simulate::{SimulateOptions, simulate};
use burn_pipeline::stage::Batch;
use burn_pipeline::train::{Builder, Pipeline};
use std::time::Instant;

const MICROBATCHES: usize = 8;
const RATE: f64 = 1e-4;
/// The rounds over the layers whose medians are used.
const LAYER_ROUNDS: usize = 5;

struct Row {
    name: String,
    cut: String,
    predicted: f64,
    pipeline: Pipeline,
    batch: fn(usize) -> Batch,
    seconds: Vec<f64>,
}

fn builder() -> Builder {
    Pipeline::builder().devices(vec![Device::flex()]).optimizer(|| AdamWConfig::new().init())
}

fn row(name: String, cut: &Partition, profile: &Profile, built: Builder, batch: fn(usize) -> Batch) -> Row {
    let mut pipeline = built.build().unwrap();
    let plan = pipeline.plan(MICROBATCHES).unwrap();
    let options = SimulateOptions { transport: Transport::Unbounded, ..SimulateOptions::default() };
    let predicted = simulate(plan.plan(), profile, &options).unwrap().makespan;
    Row { name, cut: cut.to_string(), predicted, pipeline, batch, seconds: Vec::new() }
}

fn main() {
    let flags = Flags::read(&[("--ranks N", "ranks; 2 if absent"), ("--rounds N", "rounds; 7 if absent")]);
    let (ranks, rounds) = (flags.number("--ranks", 2), flags.number("--rounds", 7));
    let kinds: Pattern = config().kinds().parse().unwrap();
    let finest = Partition::even(config().all_layers(), config().all_layers()).unwrap();
    let alone = builder().stages(move |at| config().stage_of(at, &finest));
    let layers = alone.measure_layers(batch(1), kinds.kinds(), LAYER_ROUNDS).unwrap().layers;
    let (embedding, head) = (&layers.all()[0], &layers.all()[BLOCKS + 1]);
    let blocks = Layers::new(layers.all()[1..=BLOCKS].to_vec()).unwrap();
    let pieces = VocabularyCost::of_layers(embedding, head, layers.all()[BLOCKS].output_bytes, ranks);
    let mut rows = Vec::new();
    for (schedule, chunks) in [("1F1B", 1), ("ZBH1", 1), ("ZBVZeroBubble", 2)] {
        let size = Size { ranks, chunks, microbatches: MICROBATCHES };
        let placement = by_name(schedule).unwrap().build(size).unwrap().placement().clone();
        let cut = Partition::optimal(&layers, &placement, &PartitionOptions::default()).unwrap().partition;
        let profile = cut.profile(&layers, LinkCosts::default()).unwrap();
        let own = cut.clone();
        let whole = builder().stages(move |at| config().stage_of(at, &own)).schedule(schedule, size);
        rows.push(row(format!("{schedule}, best cut"), &cut, &profile, whole, batch));
        let cut = Partition::even(BLOCKS, placement.stages()).unwrap();
        let profile = cut.profile(&blocks, LinkCosts::default()).unwrap().with_vocabulary(pieces).unwrap();
        let spread = builder().stages(between).vocabulary(vocabulary()).planned_with(profile.clone());
        let spread = spread.schedule(schedule, size);
        let on = if placement.kind() == PlacementKind::V { "a V" } else { "a loop" };
        rows.push(row(format!("{schedule} on {on}, vocabulary parallel"), &cut, &profile, spread, tokens));
    }
    for round in 0..rounds + 2 {
        for row in &mut rows {
            let began = Instant::now();
            row.pipeline.step((row.batch)(MICROBATCHES), RATE).unwrap();
            row.seconds.extend((round >= 2).then(|| began.elapsed().as_secs_f64()));
        }
    }
    println!("{ranks} ranks, {MICROBATCHES} microbatches of one sequence, {:?}", config());
    println!("head {:.1} ms, a block {:.1} ms of F, I and W\n", head.seconds() * 1e3, blocks.all()[0].seconds() * 1e3);
    println!("| schedule | layers by stage | predicted ms | step ms (min..max) |");
    println!("|---|---|---|---|");
    for Row { name, cut, predicted, seconds, .. } in &rows {
        println!("| {name} | {cut} | {:.1} | {} |", predicted * 1e3, Spread::of(seconds));
    }
}
