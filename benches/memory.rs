//! Peak memory of each schedule: one child process a schedule, so that no run inherits another's heap.
//!
//! `cargo bench -p benches --bench memory [-- --microbatches M] [--families A,B]`
//!
//! 1. The parent starts itself once a family; for some of them once more with outputs kept, and with activations
//!    recomputed.
//! 2. The child trains three steps on two ranks. Every allocation is counted on the rank whose thread made it
//!    ([`benches::heap`]); what a rank sends stays on its account until the receiver frees it.
//! 3. It reports the peak of each rank's heap, and the process's peak resident memory as Linux counts it.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints and may stop")]

use benches::heap::{Counting, peak_of_rank, restart};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::schedule::{Chunks, Size, all, by_name};
use burn_pipeline::simulate::{SimulateOptions, simulate};
use burn_pipeline::stage::Batch;
use burn_pipeline::train::{Pipeline, StepReport};
use pipeline_examples::gpt::{GptConfig, Signal};
use std::process::Command;

#[global_allocator]
static HEAP: Counting = Counting;

const RANKS: usize = 2;
/// Outputs are released once they were sent; what backwards need is kept.
const RELEASED: &str = "kept, outputs released";
/// Outputs are kept, too.
const KEPT: &str = "kept, with outputs";
/// Inputs of stages alone are kept.
const RECOMPUTED: &str = "recomputed";

fn argument(name: &str) -> Option<String> {
    std::env::args().skip_while(|argument| argument != name).nth(1)
}

fn main() {
    let microbatches: usize = argument("--microbatches").and_then(|n| n.parse().ok()).unwrap_or(16);
    match argument("--one") {
        Some(name) => one(&name, microbatches, &argument("--way").unwrap_or_default()),
        None => parent(microbatches),
    }
}

fn parent(microbatches: usize) {
    let wanted = argument("--families").map(|names| names.to_lowercase());
    println!("{RANKS} ranks, {microbatches} microbatches of 2 sequences, d_model 256, 8 layers, seq 128; MiB");
    println!(
        "| schedule | activations | heap peak rank 0 | heap peak rank 1 | both | resident peak | predicted activations by rank |"
    );
    println!("|---|---|---|---|---|---|---|");
    for name in all().iter().map(|schedule| schedule.family().name).filter(|name| *name != "ForwardOnly") {
        if wanted.as_ref().is_some_and(|w| !w.split(',').any(|w| w == name.to_lowercase())) {
            continue;
        }
        let ways: &[&str] = match name {
            "GPipe" | "1F1B" => &[RELEASED, KEPT, RECOMPUTED],
            "Interleaved1F1B" | "ZBVZeroBubble" => &[RELEASED, RECOMPUTED],
            _ => &[RELEASED],
        };
        for way in ways {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--one", name, "--microbatches", &microbatches.to_string(), "--way", way]);
            print!("{}", String::from_utf8_lossy(&child.output().unwrap().stdout));
        }
    }
}

fn one(name: &str, microbatches: usize, way: &str) {
    let (keep, recompute) = (way == KEPT, way == RECOMPUTED);
    let schedule = by_name(name).unwrap();
    let chunks = match schedule.family().chunks {
        Chunks::Exactly(n) => n,
        Chunks::Any => 2,
    };
    let config = GptConfig::new().with_d_model(256).with_layers(8).with_heads(4).with_seq(128);
    let Ok(mut pipeline) = Pipeline::builder()
        .schedule(schedule, Size { ranks: RANKS, chunks, microbatches })
        .devices(vec![Device::flex()])
        .stages(move |at| config.stage(at).recomputed(recompute))
        .optimizer(|| AdamWConfig::new().init())
        .keep_outputs(keep)
        .build()
    else {
        return;
    };
    let tokens = Tensor::<1, Int>::arange(0..(2 * microbatches * 128) as i64, &Device::flex());
    let tokens = tokens.remainder_scalar(251).reshape([2 * microbatches, 128]);
    let mut reports = Vec::new();
    for step in 0..3 {
        if step == 1 {
            // The first step makes the optimizer's state.
            restart();
        }
        let batch = Batch::new(Signal::Tokens(tokens.clone())).target(tokens.clone());
        reports.push(pipeline.step(batch, 1e-4).unwrap());
    }
    let mib = |bytes: usize| bytes as f64 / (1 << 20) as f64;
    let (first, second) = (mib(peak_of_rank(0)), mib(peak_of_rank(1)));
    let plan = pipeline.plan(microbatches).unwrap();
    let profile = StepReport::profile(pipeline.placement(), &reports).unwrap();
    let simulated = simulate(plan.plan(), &profile, &SimulateOptions::default()).unwrap();
    let predicted: Vec<String> = simulated.ranks.iter().map(|rank| format!("{:.1}", rank.peak_activations)).collect();
    println!(
        "| {name} | {way} | {first:.0} | {second:.0} | {:.0} | {:.0} | {} |",
        first + second,
        resident_peak().unwrap_or(f64::NAN),
        predicted.join(", "),
    );
}

/// Linux's count of the most resident memory so far, in MiB.
fn resident_peak() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
}
