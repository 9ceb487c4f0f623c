//! How well a stage's backward splits, and the cost of replaying captured programs compared with Burn's autodiff.
//!
//! `cargo bench -p benches --bench split [-- [--rounds N] [--programs]]`; `--programs` prints the captured programs
//! and their compiled forms.
//!
//! 1. Each stage is built from the same weights: run plainly, captured, and compiled. Everything runs on one
//!    thread.
//! 2. Rounds alternate plain `F, B`, replayed and compiled `F, B` and `F, I, W`, so that other load on the machine
//!    affects all alike. The first round captures; it is timed separately and not counted.
//! 3. The same layers that defer their weight gradients are split without a capture.
//! 4. `W` of 2, 4 and 8 microbatches is timed separately and merged, in alternating rounds; the gradients of both
//!    are compared.
//! 5. The bytes that the programs predict to hold after `F` and after `I` are printed beside the allocator's: live
//!    bytes after the action, with sent outputs dropped, minus those before the forward.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints and may stop")]

use benches::deferring;
use benches::flags::Flags;
use benches::heap::Counting;
use benches::spread::Spread;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, Tensor};
use burn_pipeline::payload::{AnyTensor, Boundary, Payload};
use burn_pipeline::program::StagePrograms;
use burn_pipeline::stage::{SingleStage, SplitBackward, Stage, StageBox};
use burn_pipeline::train::StageContext;
use pipeline_examples::gpt::{GptConfig, Signal};
use std::time::Instant;

#[global_allocator]
static HEAP: Counting = Counting::new();

#[derive(Module, Debug)]
struct Stack {
    layers: Vec<Linear>,
}

impl Stage for Stack {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.layers.iter().fold(x, |x, layer| relu(layer.forward(x)))
    }
}

/// A stage with its input and the gradient of its output.
struct Subject {
    name: &'static str,
    build: fn() -> StageBox,
    /// The same with layers that defer, and its input if its shape or type differs.
    deferring: fn() -> StageBox,
    deferring_input: Option<Payload>,
    input: Payload,
    seed: AnyTensor,
}

impl Subject {
    /// Input and gradient as they arrive: not shared.
    fn fresh(&self) -> (Payload, Vec<Option<AnyTensor>>) {
        let input = self.input.clone().map_tensors(|_, tensor| Ok::<_, ()>(copy(tensor))).unwrap();
        (input, vec![Some(copy(self.seed.clone()))])
    }
}

fn noise<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex())
}

fn stack() -> StageBox {
    let device = Device::flex().autodiff();
    StageBox::new(Stack { layers: (0..6).map(|_| LinearConfig::new(1024, 1024).init(&device)).collect() })
}

/// One block: stage 1 of 3 of a model with three blocks.
fn block() -> StageBox {
    let config = GptConfig::new().with_d_model(256).with_layers(3).with_heads(4).with_seq(128);
    let at = StageContext {
        index: 1,
        stages: 3,
        rank: 0,
        device: Device::flex().autodiff(),
        cut: None,
        group: Default::default(),
        replicas: Default::default(),
    };
    config.stage(&at)
}

/// Short microbatches of wide layers, where merging helps most.
fn short() -> Subject {
    Subject {
        name: "6 x Linear(1024) + relu, 32 rows",
        build: stack,
        deferring: deferring::stack,
        deferring_input: None,
        input: noise([32, 1024]).into_payload(),
        seed: AnyTensor::new(noise([32, 1024])),
    }
}

fn subjects() -> Vec<Subject> {
    vec![
        Subject {
            name: "6 x Linear(1024) + relu, 1024 rows",
            build: stack,
            deferring: deferring::stack,
            deferring_input: None,
            input: noise([1024, 1024]).into_payload(),
            seed: AnyTensor::new(noise([1024, 1024])),
        },
        Subject {
            name: "transformer block, d_model 256, seq 128, batch 4",
            build: block,
            deferring: deferring::block,
            deferring_input: Some(noise([4, 128, 256]).into_payload()),
            input: Signal::Hidden(noise([4, 128, 256])).into_payload(),
            seed: AnyTensor::new(noise([4, 128, 256])),
        },
    ]
}

/// A stage with its engine.
fn stage(subject: &Subject, split: SplitBackward) -> SingleStage {
    SingleStage::new((subject.build)(), split, true)
}

/// The same numbers in separate storage.
fn copy(tensor: AnyTensor) -> AnyTensor {
    tensor.scale(1.0)
}

fn forward(stage: &mut SingleStage, input: Payload) -> Payload {
    stage.forward(0, input, Payload::default()).unwrap()
}

fn seconds<T>(f: impl FnOnce() -> T) -> (f64, T) {
    let began = Instant::now();
    let value = f();
    (began.elapsed().as_secs_f64(), value)
}

#[derive(Default)]
struct Times {
    eager: [Vec<f64>; 2],
    replayed: [Vec<f64>; 2],
    split: [Vec<f64>; 3],
    compiled: [Vec<f64>; 2],
    compiled_split: [Vec<f64>; 3],
}

fn forward_backward(stage: &mut SingleStage, subject: &Subject, times: &mut [Vec<f64>; 2]) {
    let (input, seed) = subject.fresh();
    times[0].push(seconds(|| drop(forward(stage, input))).0);
    times[1].push(seconds(|| drop(stage.backward(0, seed).unwrap())).0);
    stage.clear();
}

fn split(stage: &mut SingleStage, subject: &Subject, times: &mut [Vec<f64>; 3]) -> [usize; 2] {
    let before = HEAP.live();
    let (input, seed) = subject.fresh();
    let arrived = subject.seed.bytes();
    times[0].push(seconds(|| drop(forward(stage, input))).0);
    let after_forward = HEAP.live() - before - arrived;
    times[1].push(seconds(|| drop(stage.backward_input(0, seed).unwrap())).0);
    let after_input = HEAP.live() - before;
    times[2].push(seconds(|| stage.backward_weight(&[0]).unwrap()).0);
    stage.clear();
    [after_forward, after_input]
}

fn measure(subject: &Subject, rounds: usize, prints: bool) {
    let mut eager = stage(subject, SplitBackward::Eager);
    let mut captured = stage(subject, SplitBackward::Captured);
    let (first, _) = seconds(|| drop(forward(&mut captured, subject.fresh().0)));
    captured.clear();
    let mut compiled = SingleStage::new((subject.build)().compiled(true), SplitBackward::Captured, true);
    let (first_compiled, _) = seconds(|| drop(forward(&mut compiled, subject.fresh().0)));
    compiled.clear();
    let mut times = Times::default();
    let mut held = [0, 0];
    for _ in 0..rounds {
        forward_backward(&mut eager, subject, &mut times.eager);
        forward_backward(&mut captured, subject, &mut times.replayed);
        held = split(&mut captured, subject, &mut times.split);
        forward_backward(&mut compiled, subject, &mut times.compiled);
        split(&mut compiled, subject, &mut times.compiled_split);
    }
    print(subject, &captured.report().programs[0], first, &times, held);
    println!("capture, compilation and first forward {:.1} ms", first_compiled * 1e3);
    // The allocator does not see this, since compiled programs reuse storage.
    let programs = compiled.report().programs[0].clone();
    println!(
        "compiled: held F to I {}, I to W {}",
        mib(programs.forward().held_bytes()),
        mib(programs.input().held_bytes())
    );
    let named = [("F", programs.forward()), ("I", programs.input()), ("W", programs.weight())];
    for (name, program) in named {
        let compiled = program.compiled().unwrap_or_default();
        let summary = compiled.lines().next().unwrap_or_default();
        println!("{name}: {:.1} MB moved as recorded; compiled: {summary}", program.bytes() as f64 / 1e6);
    }
    if prints {
        for program in [programs.forward(), programs.input(), programs.weight(), programs.backward()] {
            println!("\n{program}\n{}", program.compiled().unwrap_or_default());
        }
    }
}

fn print(subject: &Subject, programs: &StagePrograms, first: f64, times: &Times, held: [usize; 2]) {
    let median = |times: &[f64]| Spread::of(times).median;
    let (whole, input, weight) = (median(&times.replayed[1]), median(&times.split[1]), median(&times.split[2]));
    let (replayed, eager) = (median(&times.replayed[0]), median(&times.eager[0]));
    println!("\n{}", subject.name);
    println!("| | F ms | B ms | I ms | W ms |\n|---|---|---|---|---|");
    println!("| eager | {} | {} | | |", ms(&times.eager[0]), ms(&times.eager[1]));
    println!(
        "| replayed | {} | {} | {} | {} |",
        ms(&times.replayed[0]),
        ms(&times.replayed[1]),
        ms(&times.split[1]),
        ms(&times.split[2])
    );
    println!(
        "| compiled | {} | {} | {} | {} |",
        ms(&times.compiled[0]),
        ms(&times.compiled[1]),
        ms(&times.compiled_split[1]),
        ms(&times.compiled_split[2])
    );
    println!("I / B {:.3}, W / B {:.3}, (I + W) / B {:.3}", input / whole, weight / whole, (input + weight) / whole);
    println!("replayed over eager: F {:.3}, B {:.3}", replayed / eager, whole / median(&times.eager[1]));
    println!(
        "capture and first forward {:.1} ms, of which capture about {:.1} ms",
        first * 1e3,
        (first - replayed) * 1e3
    );
    let [f, i, w] = [programs.forward(), programs.input(), programs.weight()];
    let total = (f.flops() + i.flops() + w.flops()) as f64;
    let share = |flops: u64| 100.0 * flops as f64 / total;
    println!(
        "operations by count: F {:.1} %, I {:.1} %, W {:.1} % of {:.3} GFLOP",
        share(f.flops()),
        share(i.flops()),
        share(w.flops()),
        total / 1e9
    );
    let [after_forward, after_input] = held.map(mib);
    println!("held F to I: predicted {}, measured {after_forward}", mib(f.held_bytes()));
    println!("held I to W: predicted {}, measured {after_input}", mib(i.held_bytes()));
}

fn mib(bytes: usize) -> String {
    format!("{:.2} MiB", bytes as f64 / (1 << 20) as f64)
}

/// Layers that defer, with whole and split backwards by Burn's autodiff.
fn defer(subject: &Subject, rounds: usize) {
    let input = subject.deferring_input.clone().unwrap_or_else(|| subject.input.clone());
    let subject = Subject {
        name: subject.name,
        build: subject.deferring,
        input,
        seed: subject.seed.clone(),
        deferring_input: None,
        ..*subject
    };
    let mut stage = stage(&subject, SplitBackward::Eager);
    let mut times = Times::default();
    for _ in 0..rounds {
        forward_backward(&mut stage, &subject, &mut times.eager);
        split(&mut stage, &subject, &mut times.split);
    }
    let median = |times: &[f64]| Spread::of(times).median;
    let (whole, input, weight) = (median(&times.eager[1]), median(&times.split[1]), median(&times.split[2]));
    let share = stage.report().deferred.unwrap();
    println!(
        "| deferring | {} | {} | {} | {} |",
        ms(&times.eager[0]),
        ms(&times.eager[1]),
        ms(&times.split[1]),
        ms(&times.split[2])
    );
    println!(
        "deferring: I / B {:.3}, W / B {:.3}, (I + W) / B {:.3}; \
         {} operations deferred {:.1} % of the weights' elements",
        input / whole,
        weight / whole,
        (input + weight) / whole,
        share.operations,
        100.0 * share.share()
    );
}

/// `F` and `I` of some microbatches, so that only their `W`s are left.
fn halfway(stage: &mut SingleStage, subject: &Subject, microbatches: usize) {
    for microbatch in 0..microbatches {
        let (input, seed) = subject.fresh();
        drop(stage.forward(microbatch, input, Payload::default()).unwrap());
        drop(stage.backward_input(microbatch, seed).unwrap());
    }
}

/// Takes all accumulated gradients.
fn gradients(stage: &mut SingleStage) -> Vec<f32> {
    let read = |gradient: AnyTensor| gradient.to_data().unwrap().iter::<f32>().collect::<Vec<f32>>();
    let gradients = stage.gradients().into_iter().flat_map(|gradient| read(gradient.unwrap())).collect();
    stage.clear();
    gradients
}

fn merge(subject: &Subject, rounds: usize) {
    let mut stage = stage(subject, SplitBackward::Captured);
    println!("\n{}", subject.name);
    println!(
        "| W of | one by one, ms | merged, ms | merged over one by one | largest difference |\n|---|---|---|---|---|"
    );
    for microbatches in [2, 4, 8] {
        let indices: Vec<usize> = (0..microbatches).collect();
        let (mut single, mut merged) = (Vec::new(), Vec::new());
        let mut off = 0.0f32;
        for _ in 0..rounds {
            halfway(&mut stage, subject, microbatches);
            single.push(seconds(|| indices.iter().for_each(|&s| stage.backward_weight(&[s]).unwrap())).0);
            let expected = gradients(&mut stage);
            halfway(&mut stage, subject, microbatches);
            merged.push(seconds(|| stage.backward_weight(&indices).unwrap()).0);
            let got = gradients(&mut stage);
            let largest = expected.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
            let differ = got.iter().zip(&expected).map(|(a, b)| (a - b).abs() / largest);
            off = differ.fold(off, f32::max);
        }
        let median = |times: &[f64]| Spread::of(times).median;
        let ratio = median(&merged) / median(&single);
        println!("| {microbatches} | {} | {} | {ratio:.3} | {off:.1e} |", ms(&single), ms(&merged));
    }
}

fn ms(times: &[f64]) -> String {
    let Spread { min, median, max } = Spread::of(times);
    format!("{:.2} ({:.2}..{:.2})", median * 1e3, min * 1e3, max * 1e3)
}

fn main() {
    let flags =
        Flags::read(&[("--rounds N", "rounds; 15 if absent"), ("--programs", "prints captured and compiled programs")]);
    let (rounds, prints) = (flags.number("--rounds", 15), flags.has("--programs"));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(|| {
        for subject in subjects() {
            measure(&subject, rounds, prints);
            defer(&subject, rounds);
        }
        println!("\nMerging the weights' backwards");
        subjects().iter().chain(&[short()]).for_each(|subject| merge(subject, rounds));
    });
}
