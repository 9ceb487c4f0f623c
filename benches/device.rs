//! Steps of a small GPT on one device that all ranks share: the plain loop, stages under plain autodiff, captured
//! (each forward recorded, or one for a thousand: *shared*) and compiled; and the cost of passing tensors between ranks
//! on a CubeCL device.
//!
//! `cargo bench --features benches/wgpu --bench device -- [--device wgpu] [--rounds N] [--layers N] [--width N]
//! [--seq N] [--samples N] [--precision bf16]`; add `benches/fusion` to fuse operations.
//!
//! 1. All contestants are built first and alternate, so that other load on the machine affects all alike. The first
//!    two rounds compile kernels and are not counted.
//! 2. A step is timed from call to return, after a wait for the device.
//! 3. Only Flex has a compiler. Elsewhere compiled stages run the captured programs, so the difference between
//!    these rows shows the noise between two rows of one program.
//! 4. The cost of ordering: the same pipelines with one queue per thread, CubeCL's default. Their numbers may be
//!    wrong (the guide, `devices`), so they are timed last and discarded.
//! 5. The cost of copies: 200 messages of a step's size in a row between two ranks of one device.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints and may stop")]

use benches::flags::Flags;
use benches::plain::PlainLoop;
use benches::spread::Spread;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::execute::Tuning;
use burn_pipeline::link::{Header, Link, Message, MessageKind, Threads};
use burn_pipeline::payload::Boundary;
use burn_pipeline::plan::StageId;
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Batch, Precision, SplitBackward};
use burn_pipeline::train::Pipeline;
use clap::ValueEnum;
use cubecl_environment::stream::{StreamPolicy, set_policy};
use pipeline_examples::device::DeviceName;
use pipeline_examples::gpt::{GptConfig, Signal, precision};
use pipeline_examples::options::PrecisionName;
use std::time::{Duration, Instant};

const MICROBATCHES: usize = 4;
const RATE: f64 = 1e-4;
const WARM_UP: usize = 2;
const MESSAGES: usize = 200;

type Tokens = Tensor<2, Int>;
type Step = Box<dyn FnMut(&[Tokens; 2])>;

/// A contestant, which runs a step.
struct Contestant {
    name: String,
    step: Step,
    seconds: Vec<f64>,
}

/// How stages run.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    Eager,
    Captured,
    Shared,
    Compiled,
}

fn pipeline(
    device: &Device,
    config: &GptConfig,
    half: Option<&Precision>,
    schedule: &str,
    ranks: usize,
    way: Way,
) -> Contestant {
    let (chunks, config) = (if schedule == "ZBVZeroBubble" { 2 } else { 1 }, config.clone());
    let builder = Pipeline::builder();
    let builder = half.map_or(builder.clone(), |half| builder.precision(precision(half.clone())));
    let mut pipeline = builder
        .schedule(schedule, Size { ranks, chunks, microbatches: MICROBATCHES })
        .devices(vec![device.clone()])
        .timeout(Duration::from_secs(600))
        .split(if way == Way::Eager { SplitBackward::Eager } else { SplitBackward::Captured })
        .compile(way == Way::Compiled)
        .tuning(Tuning { record_every: if way == Way::Shared { 1000 } else { 1 }, ..Tuning::default() })
        .stages(move |at| config.stage(at))
        .optimizer(|| AdamWConfig::new().init())
        .build()
        .unwrap();
    let step = move |[input, target]: &[Tokens; 2]| {
        let batch = Batch::new(Signal::Tokens(input.clone())).target(target.clone());
        pipeline.step(batch, RATE).unwrap();
    };
    let name = format!("{schedule}, {ranks} rank{}, {way:?}", if ranks == 1 { "" } else { "s" });
    Contestant { name, step: Box::new(step), seconds: Vec::new() }
}

fn contestants(device: &Device, config: &GptConfig, half: Option<&Precision>) -> Vec<Contestant> {
    let mut plain = PlainLoop::on(device.clone(), config.clone(), 1, MICROBATCHES);
    let step = move |[input, target]: &[Tokens; 2]| {
        plain.step(input, target, RATE);
    };
    let plain = Contestant { name: "the plain loop".to_owned(), step: Box::new(step), seconds: Vec::new() };
    let pipelines = [("1F1B", 1), ("1F1B", 2), ("ZBVZeroBubble", 2)].into_iter().flat_map(|(schedule, ranks)| {
        [Way::Eager, Way::Captured, Way::Shared, Way::Compiled]
            .map(|way| pipeline(device, config, half, schedule, ranks, way))
    });
    std::iter::once(plain).chain(pipelines).collect()
}

/// Rounds in which all contestants alternate.
fn rounds(device: &Device, contestants: &mut [Contestant], tokens: &[Tokens; 2], count: usize) {
    for _ in 0..count {
        for contestant in &mut *contestants {
            let began = Instant::now();
            (contestant.step)(tokens);
            device.sync().unwrap();
            contestant.seconds.push(began.elapsed().as_secs_f64());
        }
    }
}

fn print(contestants: &mut [Contestant], heading: &str) {
    println!("\n| step, ms: median (least..most) | {heading} |\n|---|---|");
    for Contestant { name, seconds, .. } in contestants {
        println!("| {name} | {} |", Spread::of(&std::mem::take(seconds)));
    }
}

/// The queue's seconds per message between two ranks on the device: many messages in a row, waited for once.
fn hand_over(device: &Device, shape: [usize; 3]) -> f64 {
    let threads = Threads::new(2);
    let (mut from, mut to) = (threads.link(0, device.clone()), threads.link(1, device.clone()));
    let tensor = Tensor::<3>::ones(shape, device);
    let mut messages = || {
        let began = Instant::now();
        let deadline = began + Duration::from_secs(60);
        for microbatch in 0..MESSAGES {
            let header = Header { stage: StageId::new(1), microbatch, kind: MessageKind::Activation };
            let payload = tensor.clone().into_payload();
            from.send(1, Message { header, payload }, deadline).unwrap();
            to.receive(0, header, deadline).unwrap();
        }
        device.sync().unwrap();
        began.elapsed().as_secs_f64() / MESSAGES as f64
    };
    let seconds: Vec<f64> = (0..2 * WARM_UP + 1).map(|_| messages()).skip(WARM_UP).collect();
    Spread::of(&seconds).median
}

fn main() {
    let flags = Flags::read(&[
        ("--device NAME", "flex, cpu, cuda or wgpu; flex if absent"),
        ("--rounds N", "rounds; 7 if absent"),
        ("--layers N", "layers; 8 if absent"),
        ("--width N", "width of a layer; 64 if absent"),
        ("--precision NAME", "bf16 or f16 in pipelines; f32 if absent. The plain loop is f32"),
        ("--seq N", "tokens of a sample; 64 if absent"),
        ("--samples N", "samples of a batch; 8 if absent"),
    ]);
    let device = DeviceName::from_str(flags.text("--device").unwrap_or("flex"), true).unwrap().open().unwrap();
    let (count, layers, width) =
        (flags.number("--rounds", 7), flags.number("--layers", 8), flags.number("--width", 64));
    let (seq, samples) = (flags.number("--seq", 64), flags.number("--samples", 8));
    let named = PrecisionName::from_str(flags.text("--precision").unwrap_or("f32"), true).unwrap();
    let half = named.half();
    let config = GptConfig::new().with_d_model(width).with_layers(layers).with_heads(4).with_seq(seq);
    let tokens = [0, 31].map(|salt| {
        let all = Tensor::<1, Int>::arange(0..(samples * seq) as i64, &device);
        all.mul_scalar(7919 + salt).remainder_scalar(251).reshape([samples, seq])
    });
    let fusion = cfg!(feature = "fusion");
    println!("{device:?}, fusion: {fusion}, {layers} blocks of width {width}, {MICROBATCHES} microbatches");
    println!("{samples} samples of {seq} tokens, pipelines in {named:?}");
    let mut contestants = contestants(&device, &config, half.as_ref());
    rounds(&device, &mut contestants, &tokens, WARM_UP);
    contestants.iter_mut().for_each(|contestant| contestant.seconds.clear());
    rounds(&device, &mut contestants, &tokens, count);
    print(&mut contestants, "one queue, as pipelines set");

    let seconds = hand_over(&device, [samples / MICROBATCHES, seq, width]);
    println!("\na message between ranks: {:.0} us", seconds * 1e6);

    set_policy(StreamPolicy::PerThread);
    rounds(&device, &mut contestants, &tokens, WARM_UP);
    contestants.iter_mut().for_each(|contestant| contestant.seconds.clear());
    rounds(&device, &mut contestants, &tokens, count);
    print(&mut contestants, "one queue per thread: wrong numbers, for comparison");
}
