//! Ranks that share a device match one rank bit for bit, run after run.
//!
//! 1. A run trains a small model on one device for three steps and evaluates one batch. Losses and weights are
//!    compared with those of one rank on the same device, computed once. Each stage has one layer: transfers
//!    between ranks are what may race, and little work between them makes them frequent.
//! 2. By default, a GPT runs once for each kind of transfer between ranks. With `RUNS`, a stack of layers also runs
//!    that many times under every schedule with 1, 2 and 4 chunks. All cases run under plain autodiff and captured;
//!    compiled programs run on Flex alone, see `tests/runtime`. With `fusion`, only one kind of transfer runs under
//!    each engine, since every cut compiles its own kernels.
//! 3. `STREAMS` sets CubeCL's number of queues per device for all threads, instead of its default of 128.
//! 4. Each run that matches is printed at once, so that an interrupted test still shows its count.
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
use burn_pipeline::payload::Boundary;
use burn_pipeline::plan::StageId;
use burn_pipeline::schedule::{Size, all, by_name};
use burn_pipeline::stage::{Accumulation, Batch, SplitBackward};
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

/// The model to train.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Model {
    Stack,
    Gpt,
    /// The embedding and the head share one parameter, which two ranks may hold.
    TiedGpt,
}

/// A model, a schedule, its data-parallel replicas, and the engine of the stages.
#[derive(Clone, Debug)]
struct Case {
    model: Model,
    schedule: &'static str,
    size: Size,
    replicas: usize,
    split: SplitBackward,
}

impl Case {
    /// One rank that runs the same model in the same way.
    fn on_one_rank(&self) -> Self {
        Self { schedule: "GPipe", size: Size::new(1, MICROBATCHES), replicas: 1, ..self.clone() }
    }

    /// The number of layers, which is the plan's number of stages.
    fn layers(&self) -> usize {
        by_name(self.schedule).unwrap().build(self.size).unwrap().placement().stages()
    }
}

fn config(layers: usize) -> GptConfig {
    GptConfig::new().with_d_model(32).with_layers(layers).with_heads(2).with_seq(SEQUENCE).with_vocab(VOCABULARY)
}

/// Values from a formula, such that losses fall and microbatches differ.
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

/// The losses of all steps and of an evaluated batch, and all weights at the end.
type Trained = (Vec<f64>, Vec<f32>);

/// Trains a model of `layers` layers.
fn trained(device: &Device, case: &Case, layers: usize) -> Trained {
    let model = case.model;
    let mut builder = Pipeline::builder()
        .schedule(case.schedule, case.size)
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

/// Each kind of transfer between ranks, once: stages in a loop and in a V, stages in both directions with a
/// parameter that two ranks hold, data-parallel replicas.
fn some(split: SplitBackward) -> Vec<Case> {
    let case = |model, schedule, chunks, replicas| {
        let size = Size { ranks: 2, chunks, microbatches: MICROBATCHES / replicas };
        Case { model, schedule, size, replicas, split }
    };
    vec![
        case(Model::Gpt, "Interleaved1F1B", 2, 1),
        case(Model::Gpt, "ZBVZeroBubble", 2, 1),
        case(Model::TiedGpt, "Chimera", 1, 1),
        case(Model::Gpt, "1F1B", 1, 2),
    ]
}

/// Every schedule at every size that it supports on two ranks.
fn every(split: SplitBackward) -> Vec<Case> {
    let schedules: Vec<_> = all().iter().map(|schedule| schedule.info().name).collect();
    let schedules = schedules.into_iter().filter(|name| *name != "ForwardOnly");
    let case = |(schedule, size)| Case { model: Model::Stack, schedule, size, replicas: 1, split };
    let cases = schedules.flat_map(|schedule| sizes(schedule).into_iter().map(move |size| (schedule, size)));
    cases.map(case).chain(some(split)).collect()
}

/// The sizes on two ranks that a schedule supports.
fn sizes(schedule: &str) -> Vec<Size> {
    let of = |chunks| Size { ranks: 2, chunks, microbatches: MICROBATCHES };
    let schedule = by_name(schedule).unwrap();
    let trains = |size: &Size| schedule.build(*size).is_ok_and(|plan| plan.placement().stages() <= mlp::LAYERS);
    [1, 2, 4].map(of).into_iter().filter(trains).collect()
}

/// The rounding of fused operations depends on how they are grouped, and so on the cut and on the order of all
/// ranks' work in the queue. Races gave differences at least three hundred times larger.
fn assert_equal(got: &Trained, one: &Trained, place: &str) {
    let most = if cfg!(feature = "fusion") { 1e-6 } else { 0.0 };
    let close = got.0.iter().zip(&one.0).all(|(got, one)| (got - one).abs() <= most * one);
    assert!(close && got.0.len() == one.0.len(), "{place}: losses {:?} for {:?}", got.0, one.0);
    assert!(cfg!(feature = "fusion") || got.1 == one.1, "{place}: weights");
}

/// The results of one rank on a device.
struct References {
    device: Device,
    known: Vec<(Model, usize, SplitBackward, Trained)>,
}

impl References {
    /// The result for a case's model of `layers` layers, computed once.
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

/// A number from the environment.
fn number<N: FromStr<Err: Debug>>(name: &str) -> Option<N> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}

/// Sets CubeCL's number of queues per device. No device may have been used before.
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
                // A rank's fusion depends on its own row alone.
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
                // The sender does nothing more that would submit its queued operations.
                read.wait();
            });
            let payload = threads.link(1, device.clone()).receive(0, header, deadline).unwrap();
            let got = payload.tensors().next().unwrap().to_data();
            read.wait();
            assert!(got.unwrap().iter::<f32>().all(|x| x == 2047.0), "{device:?}");
        });
    }
}
