//! Whole steps in half precision, compiled and run by the interpreter, beside f32: one rank of one thread.
//!
//! `cargo bench -p benches --bench half [-- --rounds N]`
//!
//! 1. All contestants train one model on one batch: captured stages in f32, bf16 and f16 (`Builder::precision`), each
//!    interpreted and compiled (`Builder::compile`).
//! 2. Each round runs all in turn, so that other load on the machine affects all alike. Two rounds warm up.
//! 3. A step is timed from call to return. Beside it: the most bytes that the stage held between forwards and
//!    backwards.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints and may stop")]

use benches::flags::Flags;
use benches::gpt_step::{RATE, batch, config, tokens};
use benches::spread::Spread;
use burn::optim::AdamWConfig;
use burn::tensor::Device;
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Precision, SplitBackward};
use burn_pipeline::train::Pipeline;
use pipeline_examples::gpt::precision;
use std::time::Instant;

const MICROBATCHES: usize = 8;

struct Contestant {
    name: String,
    pipeline: Pipeline,
    steps: Vec<f64>,
    held: usize,
}

fn contestant(half: Option<Precision>, name: &str, compile: bool) -> Contestant {
    let builder = Pipeline::builder()
        .schedule("1F1B", Size::new(1, MICROBATCHES))
        .devices(vec![Device::flex()])
        .stages(|at| config().with_layers(2).stage(at))
        .optimizer(|| AdamWConfig::new().init())
        .split(SplitBackward::Captured)
        .compile(compile);
    let builder = half.map_or(builder.clone(), |half| builder.precision(precision(half)));
    let name = format!("{name}, {}", if compile { "compiled" } else { "interpreted" });
    Contestant { name, pipeline: builder.build().unwrap(), steps: Vec::new(), held: 0 }
}

fn main() {
    let rounds = Flags::read(&[("--rounds N", "rounds; 9 if absent")]).number("--rounds", 9);
    let types = [("f32", None), ("bf16", Some(Precision::bf16())), ("f16", Some(Precision::f16()))];
    let both = |(name, half): &(&str, Option<Precision>)| [false, true].map(|how| contestant(half.clone(), name, how));
    let mut contestants: Vec<Contestant> = types.iter().flat_map(both).collect();
    let tokens = tokens();
    for round in 0..rounds + 2 {
        for contestant in &mut contestants {
            let began = Instant::now();
            let report = contestant.pipeline.step(batch(&tokens), RATE).unwrap();
            if round >= 2 {
                contestant.steps.push(began.elapsed().as_secs_f64());
            }
            contestant.held = report.peak_held_bytes[0].unwrap_or_default();
        }
    }
    println!("| | ms per step | MB held |\n|---|---|---|");
    for Contestant { name, steps, held, .. } in &contestants {
        println!("| {name} | {} | {:.1} |", Spread::of(steps), *held as f64 / 1e6);
    }
}
