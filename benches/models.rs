//! Compiled stages for models other than transformers with dense layers.
//!
//! `cargo bench -p benches --bench models [-- --rounds N] [--only NAME]`: one rank with one thread; the
//! contestants' steps alternate. *Shared* are compiled stages of which one forward of a thousand is recorded. *First
//! step* is the first step minus a later one: capture and compilation.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints and may stop")]

use benches::flags::Flags;
use benches::spread::Spread;
use burn::nn::{Linear, LinearConfig, Lstm, LstmConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Distribution, Int, Tensor};
use burn_pipeline::execute::Tuning;
use burn_pipeline::program::Program;
use burn_pipeline::stage::SplitBackward;
use burn_pipeline::{Batch, Builder, Layer, Pipeline, Sequential, Size};
use pipeline_examples::moe::gpt::MoeGptConfig;
use pipeline_examples::moe::signal::{DOCUMENTS, MoeSignal};
use pipeline_examples::unet::UNetConfig;
use std::time::Instant;

const MICROBATCHES: usize = 4;
const RATE: f64 = 1e-4;

fn main() {
    let flags =
        Flags::read(&[("--rounds N", "rounds; 7 if absent"), ("--only NAME", "only models with this in their name")]);
    let (rounds, only) = (flags.number("--rounds", 7), flags.text("--only").unwrap_or_default());
    println!("one rank, one thread, {MICROBATCHES} microbatches; ms a step: median (min..max) of {rounds}\n");
    println!(
        "| model | eager | captured | compiled | shared | compiled / eager | compiled / captured | shared / eager | \
         first step ms | what is compiled |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for subject in [lstm(), unet(), moe()].iter().filter(|subject| subject.name.contains(only)) {
        subject.measure(rounds);
    }
}

/// A model, and a batch for it.
struct Subject {
    name: &'static str,
    model: fn(Builder) -> Builder,
    batch: Batch,
}

impl Subject {
    fn measure(&self, rounds: usize) {
        let captured = SplitBackward::Captured;
        let ways =
            [(SplitBackward::Eager, false, 1), (captured, false, 1), (captured, true, 1), (captured, true, 1000)];
        let mut pipelines: Vec<Pipeline> = ways.iter().map(|&way| self.pipeline(way)).collect();
        let step = |pipeline: &mut Pipeline| {
            let batch = self.batch.clone();
            let began = Instant::now();
            pipeline.step(batch, RATE).unwrap();
            began.elapsed().as_secs_f64()
        };
        let first: Vec<f64> = pipelines.iter_mut().map(step).collect();
        let mut seconds = vec![Vec::new(); pipelines.len()];
        // One round warms up.
        for round in 0..=rounds {
            for (pipeline, seconds) in pipelines.iter_mut().zip(&mut seconds) {
                let took = step(pipeline);
                seconds.extend((round > 0).then_some(took));
            }
        }
        let spreads: Vec<Spread> = seconds.iter().map(|seconds| Spread::of(seconds)).collect();
        let [eager, captured, compiled, shared] = [0, 1, 2, 3].map(|way| spreads[way]);
        let more = first.iter().zip(&spreads).map(|(first, spread)| format!("{:.0}", (first - spread.median) * 1e3));
        println!(
            "| {} | {eager} | {captured} | {compiled} | {shared} | {:.2} | {:.2} | {:.2} | {} | {} |",
            self.name,
            compiled.median / eager.median,
            compiled.median / captured.median,
            shared.median / eager.median,
            more.collect::<Vec<_>>().join(", "),
            what_is_compiled(&mut pipelines[2])
        );
    }

    fn pipeline(&self, (split, compile, record_every): (SplitBackward, bool, usize)) -> Pipeline {
        (self.model)(Pipeline::builder())
            .schedule("1F1B", Size::new(1, MICROBATCHES))
            .devices(vec![Device::flex()])
            .optimizer(|| AdamWConfig::new().init())
            .split(split)
            .compile(compile)
            .tuning(Tuning { record_every, ..Tuning::default() })
            .build()
            .unwrap()
    }
}

/// The summaries of a stage's forward and backward programs.
fn what_is_compiled(pipeline: &mut Pipeline) -> String {
    let engines = pipeline.engines().unwrap();
    let programs = &engines[0].1.programs[0];
    let summary =
        |program: &Program| program.compiled().unwrap_or_default().lines().next().unwrap_or_default().to_string();
    format!("F: {}; B: {}", summary(programs.forward()), summary(programs.backward()))
}

/// A recurrent network over characters: 32 steps of gates in sequence.
fn lstm() -> Subject {
    const WIDTH: usize = 128;
    let model = |builder: Builder| {
        let lstm = |lstm: &Lstm, x: Tensor<3>| lstm.forward(x, None).0;
        let layers = Sequential::new()
            .repeat(2, Layer::new("layers", |at| LstmConfig::new(WIDTH, WIDTH, true).init(&at.device), lstm))
            .then(Layer::new("head", |at| LinearConfig::new(WIDTH, WIDTH).init(&at.device), Linear::forward));
        builder.layers(layers.loss(|y: Tensor<3>, target: Tensor<3>| (y - target).square().mean()))
    };
    let random = || Tensor::<3>::random([32, 32, WIDTH], Distribution::Normal(0.0, 1.0), &Device::flex());
    Subject { name: "LSTM, two layers of 128, 32 steps", model, batch: Batch::new(random()).target(random()) }
}

fn unet() -> Subject {
    let random = || Tensor::<4>::random([32, 1, 16, 16], Distribution::Normal(0.0, 1.0), &Device::flex());
    let batch = Batch::new(random()).target(random());
    Subject { name: "U-Net of `denoise_unet`", model: |builder| builder.layers(UNetConfig::new().model()), batch }
}

fn moe() -> Subject {
    const ROWS: usize = 16;
    let model = |builder: Builder| {
        builder.stages(|at| {
            let model = MoeGptConfig::new();
            model.stage(model.part(at).unwrap(), at).unwrap()
        })
    };
    let seq = MoeGptConfig::new().seq;
    let tokens = |salt: i64| {
        let tokens = Tensor::<1, Int>::arange(0..(ROWS * seq) as i64, &Device::flex());
        tokens.mul_scalar(7919 + salt).remainder_scalar(251).reshape([ROWS, seq])
    };
    let batch = Batch::new(MoeSignal::Tokens(tokens(0))).extra(DOCUMENTS, tokens(0).zeros_like()).target(tokens(31));
    Subject { name: "experts of `train_moe`", model, batch }
}
