//! Ranks that share a device give one rank's numbers to the last bit, run after run.
//!
//! 1. A run trains a small model on one device: three steps, and a batch that is not trained on. Losses and weights are
//!    compared with those of one rank on the same device, which are computed once. Every stage has one layer: what ranks hand each
//!    other is what may race, and the less is computed in between, the more of it there is in a second.
//! 2. By default a GPT runs once in each way in which ranks hand each other tensors. With `RUNS`, a stack of layers runs that
//!    many times as well: every family, with 1, 2 and 4 chunks. All of it under plain autodiff and captured; what is compiled
//!    runs on Flex alone, see `tests/runtime`. With `fusion`, one of those ways under each: every cut has kernels of its own there.
//! 3. With `STREAMS`, CubeCL has so many queues a device for all threads, instead of its default of 128.
//! 4. Each run that was equal is printed at once, so that what was interrupted counts too.
//!
//! ```sh
//! for streams in 1 4 8; do
//!     STREAMS=$streams RUNS=5 cargo test --features pipeline-tests/wgpu --test cube queues -- --nocapture
//! done
//! ```

use crate::{devices, is_fast, turn};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_pipeline::link::{Header, Link, Message, MessageKind, Threads};
use burn_pipeline::plan::StageId;
use burn_pipeline::schedule::{Size, all, by_name};
use burn_pipeline::stage::{Accumulation, Batch, Boundary, SplitBackward};
use burn_pipeline::train::{Pipeline, SharedParameter};
use cubecl_runtime::config::{CubeClRuntimeConfig, RuntimeConfig};
use pipeline_examples::gpt::{GptConfig, Signal};
use pipeline_tests::mlp;
use std::fmt::Debug;
use std::str::FromStr;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

const SEQUENCE: usize = 16;
const VOCABULARY: usize = 32;
const MICROBATCHES: usize = 4;
const STEPS: usize = 3;

/// What is trained.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Model {
    Stack,
    Gpt,
    /// The tables of the embedding and of the head are one parameter, which two ranks may hold.
    TiedGpt,
}

/// A model, a plan, its data-parallel replicas, and how stages are run.
#[derive(Clone, Debug)]
struct Case {
    model: Model,
    family: &'static str,
    size: Size,
    replicas: usize,
    split: SplitBackward,
}

impl Case {
    /// One rank that runs the same model in the same way.
    fn on_one_rank(&self) -> Self {
        Self { family: "GPipe", size: Size::new(1, MICROBATCHES), replicas: 1, ..self.clone() }
    }

    /// As many layers as its plan has stages.
    fn layers(&self) -> usize {
        by_name(self.family).unwrap().build(self.size).unwrap().placement().stages()
    }
}

fn config(layers: usize) -> GptConfig {
    GptConfig::new().with_d_model(32).with_layers(layers).with_heads(2).with_seq(SEQUENCE).with_vocab(VOCABULARY)
}

/// Values that follow a rule, so that losses fall and each microbatch has its own.
fn batch(model: Model, device: &Device, step: usize) -> Batch {
    let samples = 2 * MICROBATCHES;
    let value = |at: usize| ((at * at + 7 * at + 13 * step) % VOCABULARY) as i64;
    let ints = |width: usize, from: usize| {
        let values = (0..samples * width).map(|at| value(at + from)).collect();
        Tensor::<2, Int>::from_data(TensorData::new::<i64, _>(values, [samples, width]), device)
    };
    let floats = |from: usize| ints(mlp::WIDTH, from).float() / VOCABULARY as f64 - 0.5;
    match model {
        Model::Stack => Batch::new((floats(0), ints(1, 0).remainder_scalar(3))).target(floats(1)),
        Model::Gpt | Model::TiedGpt => Batch::new(Signal::Tokens(ints(SEQUENCE, 0))).target(ints(SEQUENCE, 1)),
    }
}

/// The losses of all steps and of a batch that was not trained on, and all weights in the end.
type Trained = (Vec<f64>, Vec<f32>);

/// A model of so many layers, trained.
fn trained(device: &Device, case: &Case, layers: usize) -> Trained {
    let model = case.model;
    let mut builder = Pipeline::builder()
        .schedule(case.family, case.size)
        .data_parallel(case.replicas)
        .devices(vec![device.clone()])
        .split(case.split)
        .accumulation(Accumulation::Ordered)
        .optimizer(|| AdamWConfig::new().init())
        .stages(move |at| match model {
            Model::Stack => mlp::stage_of(at.layers(layers), at),
            Model::Gpt | Model::TiedGpt => config(layers).stage(at),
        });
    if model == Model::TiedGpt {
        builder = builder.share(SharedParameter::new("table").at("embed.token.weight").at("head.scores.weight"));
    }
    let mut pipeline = builder.build().unwrap();
    let step = |step| pipeline.step(batch(model, device, step), 1e-2).unwrap().loss;
    let mut losses: Vec<f64> = (0..STEPS).map(step).collect();
    losses.push(pipeline.eval(batch(model, device, STEPS)).unwrap().loss.unwrap());
    let weights = pipeline.weights().unwrap().into_iter().flatten();
    (losses, weights.flat_map(|weight| weight.to_data().unwrap().iter::<f32>().collect::<Vec<_>>()).collect())
}

/// Each way in which ranks hand each other tensors, once: stages in a loop and in a V, copies of stages in both directions with a
/// parameter that both ranks hold, data-parallel replicas.
fn some(split: SplitBackward) -> Vec<Case> {
    let case = |model, family, chunks, replicas| {
        let size = Size { ranks: 2, chunks, microbatches: MICROBATCHES / replicas };
        Case { model, family, size, replicas, split }
    };
    vec![
        case(Model::Gpt, "Interleaved1F1B", 2, 1),
        case(Model::Gpt, "ZBVZeroBubble", 2, 1),
        case(Model::TiedGpt, "Chimera", 1, 1),
        case(Model::Gpt, "1F1B", 1, 2),
    ]
}

/// Every family at every size that it has on two ranks.
fn every(split: SplitBackward) -> Vec<Case> {
    let families: Vec<_> = all().iter().map(|schedule| schedule.family().name).collect();
    let families = families.into_iter().filter(|name| *name != "ForwardOnly");
    let case = |(family, size)| Case { model: Model::Stack, family, size, replicas: 1, split };
    let cases = families.flat_map(|family| sizes(family).into_iter().map(move |size| (family, size)));
    cases.map(case).chain(some(split)).collect()
}

/// The sizes on two ranks that a family has.
fn sizes(family: &str) -> Vec<Size> {
    let of = |chunks| Size { ranks: 2, chunks, microbatches: MICROBATCHES };
    let schedule = by_name(family).unwrap();
    let trains = |size: &Size| schedule.build(*size).is_ok_and(|plan| plan.placement().stages() <= mlp::LAYERS);
    [1, 2, 4].map(of).into_iter().filter(trains).collect()
}

/// Fused operations round as their groups fall, and those depend on cuts and on the order of all ranks' work in the queue. What races
/// gave was three hundred times as far off, and more.
fn assert_equal(got: &Trained, one: &Trained, place: &str) {
    let most = if cfg!(feature = "fusion") { 1e-6 } else { 0.0 };
    let close = got.0.iter().zip(&one.0).all(|(got, one)| (got - one).abs() <= most * one);
    assert!(close && got.0.len() == one.0.len(), "{place}: losses {:?} for {:?}", got.0, one.0);
    assert!(cfg!(feature = "fusion") || got.1 == one.1, "{place}: weights");
}

/// What one rank gives on a device.
struct References {
    device: Device,
    known: Vec<(Model, usize, SplitBackward, Trained)>,
}

impl References {
    /// What it gives for the model of a case, with so many layers; computed once.
    fn of(&mut self, case: &Case, layers: usize) -> &Trained {
        let key = (case.model, layers, case.split);
        let known = self.known.iter().position(|(model, layers, split, _)| (*model, *layers, *split) == key);
        let place = known.unwrap_or_else(|| {
            let one = trained(&self.device, &case.on_one_rank(), layers);
            self.known.push((case.model, layers, case.split, one));
            self.known.len() - 1
        });
        &self.known[place].3
    }
}

/// A number in the environment.
fn number<N: FromStr<Err: Debug>>(name: &str) -> Option<N> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}

/// Sets how many queues CubeCL has on each device, which must not have been used before.
fn limit_streams(streams: u8) {
    let mut config = CubeClRuntimeConfig::default();
    config.streaming.max_streams = streams;
    CubeClRuntimeConfig::set(config);
}

#[test]
fn ranks_that_share_a_device_give_one_ranks_numbers() {
    let _turn = turn();
    if let Some(streams) = number("STREAMS") {
        limit_streams(streams);
    }
    let (runs, began) = (number::<usize>("RUNS"), Instant::now());
    let cases: Vec<Case> = [SplitBackward::Eager, SplitBackward::Captured]
        .into_iter()
        .flat_map(|split| match runs {
            Some(_) => every(split),
            None if cfg!(feature = "fusion") => {
                vec![some(split).swap_remove(usize::from(split != SplitBackward::Eager))]
            }
            None => some(split),
        })
        .collect();
    let devices: Vec<Device> = devices().into_iter().filter(is_fast).collect();
    let (total, mut done) = (devices.len() * cases.len() * runs.unwrap_or(1), 0);
    for device in devices {
        let mut references = References { device: device.clone(), known: Vec::new() };
        for run in 0..runs.unwrap_or(1) {
            for case in &cases {
                let layers = case.layers();
                let (one, place) = (references.of(case, layers), format!("{case:?} on {device:?}, run {run}"));
                let got = trained(&device, case, layers);
                assert_equal(&got, one, &place);
                // What a rank fuses depends on its own row alone.
                let fused_again = cfg!(feature = "fusion") && done == 0;
                assert!(!fused_again || got == trained(&device, case, layers), "{place}: run again");
                done += 1;
                println!("{done} of {total}, after {:.1?}: {case:?}", began.elapsed());
            }
        }
    }
    assert!(done > 0, "no device was tried");
    println!("{done} runs in {:.0?}, all equal to one rank's", began.elapsed());
}

#[test]
fn a_rank_gets_what_was_called_for_though_its_sender_does_nothing_more() {
    let _turn = turn();
    for device in devices() {
        let (threads, read) = (&Threads::new(2), &Barrier::new(2));
        let header = Header { stage: StageId::new(1), microbatch: 0, kind: MessageKind::Activation };
        let deadline = Instant::now() + Duration::from_secs(60);
        thread::scope(|scope| {
            let own = device.clone();
            scope.spawn(move || {
                let ones = Tensor::<1>::ones([1000], &own);
                let called_for = (0..10).fold(ones, |x, _| x * 2.0 + 1.0);
                let message = Message { header, payload: called_for.into_payload() };
                threads.link(0, own).send(1, message, deadline).unwrap();
                // Nothing that it calls for brings its operations on their way.
                read.wait();
            });
            let payload = threads.link(1, device.clone()).receive(0, header, deadline).unwrap();
            let got = payload.tensors().next().unwrap().to_data();
            read.wait();
            assert!(got.unwrap().iter::<f32>().all(|x| x == 2047.0), "{device:?}");
        });
    }
}
