//! Frozen stages at the model's input compute no gradients, and none is sent to them; numbers are the plain loop's.

mod chosen;
mod every_schedule;
mod neighbours;
mod unfrozen;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor, activation::tanh};
use burn_pipeline::link::{Header, Link, LinkError, Message, MessageKind, Threads};
use burn_pipeline::stage::{Names, SplitBackward, init_seeded};
use burn_pipeline::{Accumulation, Batch, Builder, Pipeline, Size, Stage, StageBox, StageContext};
use pipeline_tests::device::device;
use pipeline_tests::reference::Reference;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

const WIDTH: usize = 8;
const LAYERS: usize = 4;
const SAMPLES: usize = 8;
const MICROBATCHES: usize = 4;

#[derive(Module, Debug)]
struct Stack {
    layers: Vec<Linear>,
}

impl Stage for Stack {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.layers.iter().fold(x, |x, layer| tanh(layer.forward(x)))
    }
}

/// These layers of the model, of which some train.
fn stack(layers: std::ops::Range<usize>, trained: &[usize], device: &Device) -> Stack {
    let layer = |layer: usize| {
        let made = init_seeded(layer as u64, device, |device| LinearConfig::new(WIDTH, WIDTH).init(device));
        if trained.contains(&layer) { made } else { made.no_grad() }
    };
    Stack { layers: layers.map(layer).collect() }
}

fn loss(y: Tensor<2>, wanted: Tensor<2>) -> Tensor<1> {
    (y - wanted).square().mean()
}

fn builder(schedule: &str, size: Size, trained: &'static [usize]) -> Builder {
    Pipeline::builder()
        .schedule(schedule, size)
        .devices(vec![device()])
        .accumulation(Accumulation::Ordered)
        .optimizer(|| AdamWConfig::new().init())
        .stages(move |at: &StageContext| {
            let layers = at.layers(LAYERS);
            let names = Names::default().layers_from("layers", layers.start);
            let part = stack(layers, trained, &at.device);
            if at.is_last() { StageBox::with_loss(part, loss).named(names) } else { StageBox::new(part).named(names) }
        })
}

fn data(step: usize) -> [Tensor<2>; 2] {
    let values = |seed| pipeline_tests::noise::noise(seed + step as u64, SAMPLES * WIDTH);
    [3, 90].map(|seed| Tensor::<1>::from_floats(&*values(seed), &device()).reshape([SAMPLES, WIDTH]))
}

fn batch(step: usize) -> Batch {
    let [x, wanted] = data(step);
    Batch::new(x).target(wanted)
}

fn plain(trained: &[usize], steps: usize) -> (Vec<f64>, Vec<Vec<f32>>) {
    let mut plain = Reference::new(stack(0..LAYERS, trained, &device().autodiff()));
    let losses = (0..steps).map(|step| {
        let ([x, wanted], size) = (data(step), SAMPLES / MICROBATCHES);
        let part = |tensor: &Tensor<2>, i| tensor.clone().narrow(0, i * size, size).autodiff();
        let loss_of = |stack: &Stack, i| loss(stack.forward(part(&x, i), ()), part(&wanted, i));
        plain.step(&[size; MICROBATCHES], 1e-2, None, loss_of).loss
    });
    let losses = losses.collect();
    (losses, pipeline_tests::reference::weights(&plain.model))
}

fn weights(pipeline: &mut Pipeline) -> Vec<Vec<f32>> {
    let stages = pipeline.weights().unwrap();
    stages.into_iter().flatten().map(|weight| weight.to_data().unwrap().iter::<f32>().collect()).collect()
}

#[test]
fn frozen_stages_equal_the_plain_loop_whichever_layers_train() {
    for trained in [&[3][..], &[1], &[0, 3], &[2, 3], &[0]] {
        let (losses, expected) = plain(trained, 3);
        for (schedule, size) in [
            ("1F1B", Size::new(4, MICROBATCHES)),
            ("ZBH1", Size::new(4, MICROBATCHES)),
            ("ZBVZeroBubble", Size::new(2, MICROBATCHES).with_chunks(2)),
            ("DualPipeV", Size::new(2, MICROBATCHES).with_chunks(2)),
        ] {
            for split in [SplitBackward::Eager, SplitBackward::Captured] {
                for recompute in [false, true] {
                    let trained: &'static [usize] = Vec::leak(trained.to_vec());
                    let builder = builder(schedule, size, trained).split(split);
                    let builder = builder.stages(move |at: &StageContext| {
                        let part = stack(at.layers(LAYERS), trained, &at.device);
                        let made = if at.is_last() { StageBox::with_loss(part, loss) } else { StageBox::new(part) };
                        made.recomputed(recompute)
                    });
                    let mut pipeline = builder.build().unwrap();
                    let place = format!("{trained:?}, {schedule}, {split:?}, recomputed {recompute}");
                    for (step, loss) in losses.iter().enumerate() {
                        assert_eq!(pipeline.step(batch(step), 1e-2).unwrap().loss, *loss, "{place}");
                    }
                    assert!(weights(&mut pipeline) == expected, "{place}");
                }
            }
        }
    }
}

/// Counts the bytes of gradients, by the stage that gets them.
struct Counting<L> {
    link: L,
    sent: Arc<std::sync::Mutex<BTreeMap<usize, usize>>>,
}

impl<L: Link> Link for Counting<L> {
    burn_pipeline::forward_link!(link: rank, ranks, monitor, to_device, set_activity, receive);
    burn_pipeline::forward_link!(link: probe, all_gather, abort);

    fn send(&mut self, to: usize, message: Message, deadline: Instant) -> Result<(), LinkError> {
        let Header { kind, stage, .. } = message.header;
        if kind == MessageKind::Gradient {
            *self.sent.lock().unwrap().entry(stage.index()).or_default() += message.payload.bytes();
        }
        self.link.send(to, message, deadline)
    }
}

/// The bytes of gradients that each stage got in a step.
fn gradient_bytes(run: impl Fn(&mut Pipeline) + Sync, trained: &'static [usize]) -> Vec<usize> {
    gradient_bytes_of(run, |size| builder("1F1B", size, trained))
}

fn gradient_bytes_of(run: impl Fn(&mut Pipeline) + Sync, builder: impl Fn(Size) -> Builder + Sync) -> Vec<usize> {
    let (links, sent) = (Threads::new(LAYERS), Arc::default());
    std::thread::scope(|scope| {
        for rank in 0..LAYERS {
            let link = Counting { link: links.link(rank, device()), sent: Arc::clone(&sent) };
            let (run, builder, size) = (&run, &builder, Size::new(LAYERS, MICROBATCHES));
            scope.spawn(move || run(&mut builder(size).build_rank(Box::new(link)).unwrap()));
        }
    });
    let sent = sent.lock().unwrap();
    (0..LAYERS - 1).map(|stage| sent.get(&stage).copied().unwrap_or_default()).collect()
}

/// A gradient of a whole batch.
const GRADIENT: usize = SAMPLES * WIDTH * 4;

#[test]
fn no_gradient_is_sent_to_stages_before_the_first_that_trains() {
    let step = |pipeline: &mut Pipeline| drop(pipeline.step(batch(0), 1e-2).unwrap());
    assert_eq!(gradient_bytes(step, &[0, 1, 2, 3]), [GRADIENT; 3]);
    assert_eq!(gradient_bytes(step, &[3]), [0; 3]);
    assert_eq!(gradient_bytes(step, &[1, 3]), [0, GRADIENT, GRADIENT]);
}

#[test]
fn frozen_stages_get_gradients_if_those_of_the_batch_are_wanted_and_only_then() {
    let step = |pipeline: &mut Pipeline| drop(pipeline.step(batch(0), 0.0).unwrap());
    for (wanted, bytes) in [(false, 0), (true, GRADIENT)] {
        let builder = |size| builder("1F1B", size, &[]).input_gradients(wanted);
        assert_eq!(gradient_bytes_of(step, builder), [bytes; LAYERS - 1]);
    }
}

#[test]
fn a_stage_that_is_unfrozen_gets_gradients_from_then_on() {
    let run = |pipeline: &mut Pipeline| {
        drop(pipeline.step(batch(0), 1e-2).unwrap());
        let replaced = pipeline.replace_module(1, |stack: Stack, _: &StageContext| {
            let mut stack = stack;
            for layer in &mut stack.layers {
                layer.weight = layer.weight.clone().set_require_grad(true);
            }
            stack
        });
        replaced.unwrap();
        drop(pipeline.step(batch(1), 1e-2).unwrap());
    };
    assert_eq!(gradient_bytes(run, &[3]), [0, GRADIENT, GRADIENT]);
}

#[test]
fn frozen_stages_of_replicas_and_of_both_routes_equal_the_plain_loop() {
    let (losses, expected) = plain(&[2, 3], 2);
    for (schedule, size, replicas, sharded) in [
        ("1F1B", Size::new(4, MICROBATCHES / 2), 2, false),
        ("1F1B", Size::new(4, MICROBATCHES / 2), 2, true),
        ("ZBH1", Size::new(2, MICROBATCHES / 2), 2, true),
        ("DualPipe", Size::new(4, MICROBATCHES), 1, false),
    ] {
        let built = builder(schedule, size, &[2, 3]).data_parallel(replicas).sharded(sharded).build();
        let mut pipeline = built.unwrap();
        for (step, loss) in losses.iter().enumerate() {
            assert_eq!(pipeline.step(batch(step), 1e-2).unwrap().loss, *loss, "{schedule}, {replicas}, {sharded}");
        }
        assert!(weights(&mut pipeline) == expected, "{schedule}, {replicas}, {sharded}");
    }
}
