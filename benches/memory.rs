//! Peak memory of each schedule, predicted and measured. Each schedule and engine runs in a child process, so that
//! no run inherits another's heap.
//!
//! `cargo bench -p benches --bench memory [-- --microbatches M] [--schedules A,B] [--engines eager,captured]`
//!
//! 1. The parent starts itself once for each schedule and engine.
//! 2. The child measures what each stage holds (`Builder::measure_memory`), and the simulator predicts each rank's
//!    peak.
//! 3. It then trains on two ranks. Every allocation is counted on the rank whose thread made it
//!    ([`benches::heap`]). A sent message stays on its sender's account until the receiver frees it; the simulator
//!    counts it on the receiver's.
//! 4. It reports the peak of each rank's heap over three steps beside the prediction, and the process's peak
//!    resident memory as counted by Linux.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints and may stop")]

use benches::flags::Flags;
use benches::heap::{Counting, peak_of_rank, restart};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::execute::Tuning;
use burn_pipeline::schedule::{Chunks, Size, all, by_name};
use burn_pipeline::simulate::{SimulateOptions, simulate};
use burn_pipeline::stage::{Batch, SplitBackward};
use burn_pipeline::train::{Builder, Pipeline};
use pipeline_examples::gpt::{GptConfig, Signal};
use std::process::Command;

#[global_allocator]
static HEAP: Counting = Counting;

const RANKS: usize = 2;
const MIB: f64 = (1 << 20) as f64;

/// How stages run.
#[derive(Clone, Copy, PartialEq)]
enum Engine {
    /// Burn's autodiff.
    Eager,
    /// The same, with outputs kept until their backward.
    KeepsOutputs,
    /// Captured programs, interpreted.
    Captured,
    /// Captured programs, compiled.
    Compiled,
    /// Burn's autodiff, keeping only the inputs of stages.
    Recomputed,
    /// Captured programs, keeping only the inputs of stages.
    CapturedRecomputed,
}

const ENGINES: [(&str, Engine); 6] = [
    ("eager", Engine::Eager),
    ("keeps-outputs", Engine::KeepsOutputs),
    ("captured", Engine::Captured),
    ("compiled", Engine::Compiled),
    ("recomputed", Engine::Recomputed),
    ("captured-recomputed", Engine::CapturedRecomputed),
];

fn main() {
    let flags = Flags::read(&[
        ("--microbatches N", "microbatches; 16 if absent"),
        ("--schedules A,B", "schedules by name; all if absent"),
        ("--engines A,B", "engines by name; all if absent"),
        ("--one NAME", "one schedule, in this process, with --engine"),
        ("--engine NAME", "the engine of --one"),
    ]);
    let microbatches = flags.number("--microbatches", 16);
    match (flags.text("--one"), flags.text("--engine")) {
        (Some(name), Some(engine)) => one(name, microbatches, engine),
        _ => parent(&flags, microbatches),
    }
}

fn parent(flags: &Flags, microbatches: usize) {
    let listed = |flag: &str| flags.text(flag).map(str::to_lowercase);
    let (schedules, engines) = (listed("--schedules"), listed("--engines"));
    let wanted = |list: &Option<String>, name: &str| {
        list.as_ref().is_none_or(|list| list.split(',').any(|wanted| wanted == name.to_lowercase()))
    };
    println!("{RANKS} ranks, {microbatches} microbatches of 2 sequences, d_model 256, 8 layers, seq 128; MiB");
    println!();
    println!(
        "| schedule | engine | activations | predicted rank 0, 1 | measured rank 0, 1 | ratio rank 0, 1 | \
         resident peak |"
    );
    println!("|---|---|---|---|---|---|---|");
    let schedules = all().into_iter().map(|schedule| schedule.info().name).filter(|name| wanted(&schedules, name));
    for name in schedules.filter(|name| *name != "ForwardOnly") {
        for (engine, _) in ENGINES.iter().filter(|(engine, _)| wanted(&engines, engine)) {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--one", name, "--microbatches", &microbatches.to_string(), "--engine", engine]);
            let output = child.output().unwrap();
            print!("{}", String::from_utf8_lossy(&output.stdout));
            assert!(output.status.success(), "{name}, {engine}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

fn builder(name: &str, microbatches: usize, engine: Engine) -> Builder {
    let schedule = by_name(name).unwrap();
    let chunks = match schedule.info().chunks {
        Chunks::Exactly(n) => n,
        Chunks::Any => 2,
    };
    let config = GptConfig::new().with_d_model(256).with_layers(8).with_heads(4).with_seq(128);
    let recomputes = matches!(engine, Engine::Recomputed | Engine::CapturedRecomputed);
    let eager = matches!(engine, Engine::Eager | Engine::KeepsOutputs | Engine::Recomputed);
    Pipeline::builder()
        .schedule(schedule, Size { ranks: RANKS, chunks, microbatches })
        .devices(vec![Device::flex()])
        .stages(move |at| config.stage(at).recomputed(recomputes))
        .optimizer(|| AdamWConfig::new().init())
        .split(if eager { SplitBackward::Eager } else { SplitBackward::Captured })
        .compile(engine == Engine::Compiled)
        .tuning(Tuning { keep_outputs: engine == Engine::KeepsOutputs, ..Tuning::default() })
}

/// Two sequences per microbatch.
fn batch(microbatches: usize) -> Batch {
    let tokens = Tensor::<1, Int>::arange(0..(2 * microbatches * 128) as i64, &Device::flex());
    let tokens = tokens.remainder_scalar(251).reshape([2 * microbatches, 128]);
    Batch::new(Signal::Tokens(tokens.clone())).target(tokens)
}

fn one(name: &str, microbatches: usize, engine: &str) {
    let (_, way) = ENGINES.into_iter().find(|(known, _)| *known == engine).unwrap();
    let builder = builder(name, microbatches, way);
    let profile = builder.measure_memory(batch(1), &HEAP).unwrap();
    let mut pipeline = builder.build().unwrap();
    for step in 0..4 {
        if step == 1 {
            // The first step allocates the optimizer's state.
            restart();
        }
        pipeline.step(batch(microbatches), 1e-4).unwrap();
    }
    let plan = pipeline.plan(microbatches).unwrap();
    let simulated = simulate(plan.plan(), &profile, &SimulateOptions::default()).unwrap();
    let ranks = |of: &dyn Fn(usize) -> String| (0..RANKS).map(of).collect::<Vec<_>>().join(", ");
    let predicted = |rank: usize| simulated.ranks[rank].peak_bytes / MIB;
    let measured = |rank: usize| peak_of_rank(rank) as f64 / MIB;
    println!(
        "| {name} | {engine} | {} | {} | {} | {} | {:.0} |",
        ranks(&|rank| format!("{:.1}", simulated.ranks[rank].peak_activations)),
        ranks(&|rank| format!("{:.1}", predicted(rank))),
        ranks(&|rank| format!("{:.1}", measured(rank))),
        ranks(&|rank| format!("{:.3}", predicted(rank) / measured(rank))),
        resident_peak().unwrap_or(f64::NAN),
    );
}

/// The peak resident memory in MiB, as counted by Linux.
fn resident_peak() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
}
