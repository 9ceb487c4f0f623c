//! Frozen stages beside skip connections, and before a vocabulary-parallel head.

use super::{LAYERS, MICROBATCHES, SAMPLES, WIDTH, loss, weights};
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, activation::tanh};
use burn_pipeline::payload::Skips;
use burn_pipeline::stage::{Accumulation, SplitBackward, init_seeded};
use burn_pipeline::{Batch, Pipeline, Size, Stage, StageBox, StageContext, Vocabulary};
use pipeline_tests::device::device;
use pipeline_tests::reference::Reference;

const FIRST: usize = 2;
const RATE: f64 = 1e-2;

fn linear(layer: usize, device: &Device) -> Linear {
    let made = init_seeded(layer as u64, device, |device| LinearConfig::new(WIDTH, WIDTH).init(device));
    if layer < FIRST { made.no_grad() } else { made }
}

/// A layer that passes its output on, and to the last stage.
#[derive(Module, Debug)]
struct Node {
    linear: Linear,
    sends: bool,
}

impl Stage for Node {
    type Input = (Tensor<2>, Skips<Tensor<2>>);
    type Extra = ();
    type Output = (Tensor<2>, Skips<Tensor<2>>);

    fn forward(&self, (x, past): Self::Input, (): ()) -> Self::Output {
        let x = tanh(self.linear.forward(past.0.into_iter().fold(x, |x, past| x + past)));
        let past = if self.sends { vec![x.clone()] } else { Vec::new() };
        (x, Skips(past))
    }
}

/// The same layers on one device: the last takes the outputs of the first two and of the one before it.
#[derive(Module, Debug)]
struct Graph {
    layers: Vec<Linear>,
}

impl Graph {
    fn forward(&self, mut x: Tensor<2>) -> Tensor<2> {
        let mut past = Vec::new();
        for (index, layer) in self.layers.iter().enumerate() {
            if index == LAYERS - 1 {
                x = past.drain(..).fold(x, |x, past| x + past);
            }
            x = tanh(layer.forward(x));
            if index < 2 {
                past.push(x.clone());
            }
        }
        x
    }
}

fn rows(seed: u64) -> Tensor<2> {
    Tensor::<1>::from_floats(&*pipeline_tests::noise::noise(seed, SAMPLES * WIDTH), &device()).reshape([SAMPLES, WIDTH])
}

#[test]
fn no_gradient_goes_back_over_a_skip_edge_to_a_frozen_stage() {
    let size = SAMPLES / MICROBATCHES;
    let mut plain = Reference::new(Graph { layers: (0..LAYERS).map(|i| linear(i, &device().autodiff())).collect() });
    let part = |tensor: Tensor<2>, i| tensor.narrow(0, i * size, size).autodiff();
    let loss_of = |graph: &Graph, i| loss(graph.forward(part(rows(3), i)), part(rows(90), i));
    let expected: Vec<f64> = (0..2).map(|_| plain.step(&[size; MICROBATCHES], RATE, None, loss_of).loss).collect();
    for (schedule, size) in [("1F1B", Size::new(4, 4)), ("ZBH1", Size::new(4, 4)), ("DualPipe", Size::new(4, 4))] {
        for split in [SplitBackward::Eager, SplitBackward::Captured] {
            let builder = Pipeline::builder().schedule(schedule, size).devices(vec![device()]).split(split);
            let builder = builder.accumulation(Accumulation::Ordered).optimizer(|| AdamWConfig::new().init());
            let builder = builder.skip(0, 3).skip(1, 3).stages(|at: &StageContext| {
                let node = Node { linear: linear(at.index, &at.device), sends: at.index < 2 };
                match at.is_last() {
                    true => StageBox::with_loss(node, |(y, _): (Tensor<2>, Skips<Tensor<2>>), wanted| loss(y, wanted)),
                    false => StageBox::new(node),
                }
            });
            let mut pipeline = builder.build().unwrap();
            let batch = || Batch::new((rows(3), Skips::<Tensor<2>>(Vec::new()))).target(rows(90));
            let losses: Vec<f64> = (0..2).map(|_| pipeline.step(batch(), RATE).unwrap().loss).collect();
            assert_eq!(losses, expected, "{schedule}, {split:?}");
            assert!(
                weights(&mut pipeline) == pipeline_tests::reference::weights(&plain.model),
                "{schedule}, {split:?}"
            );
            let plan = pipeline.plan(MICROBATCHES).unwrap();
            let back = |task: burn_pipeline::plan::Task| task.is_skip() && task.to_string().contains("_B");
            assert!(plan.plan().any_task(|task| task.is_skip()) && !plan.plan().any_task(back), "{schedule}");
        }
    }
}

const WORDS: usize = 12;

fn scores(device: &Device) -> Linear {
    let head = LinearConfig::new(WIDTH, WORDS).with_bias(false);
    init_seeded(9, device, |device| head.init(device))
}

#[derive(Module, Debug)]
struct Hidden {
    linear: Linear,
}

impl Stage for Hidden {
    type Input = Tensor<3>;
    type Extra = ();
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, (): ()) -> Tensor<3> {
        tanh(self.linear.forward(x))
    }
}

#[derive(Module, Debug)]
struct Whole {
    layers: Vec<Linear>,
    scores: Linear,
}

fn words() -> Tensor<2, Int> {
    let places =
        Tensor::<1, Int>::arange(0..SAMPLES as i64 * 2, &device()).mul_scalar(5).remainder_scalar(WORDS as i64);
    places.reshape([SAMPLES, 2])
}

fn states() -> Tensor<3> {
    Tensor::cat(vec![rows(3).unsqueeze_dim::<3>(1), rows(5).unsqueeze_dim::<3>(1)], 1)
}

#[test]
fn frozen_stages_before_a_vocabulary_parallel_head_train_as_in_the_plain_loop() {
    let size = SAMPLES / MICROBATCHES;
    let device = device();
    let layers = (0..LAYERS).map(|i| linear(i, &device.clone().autodiff())).collect();
    let mut plain = Reference::new(Whole { layers, scores: scores(&device.clone().autodiff()) });
    let loss_of = |whole: &Whole, i: usize| {
        let x = states().narrow(0, i * size, size).autodiff();
        let y = whole.layers.iter().fold(x, |x, layer| tanh(layer.forward(x)));
        let targets = words().narrow(0, i * size, size).autodiff().reshape([size * 2]);
        let scores = whole.scores.forward(y).reshape([size * 2, WORDS]);
        CrossEntropyLossConfig::new().init(&scores.device()).forward(scores, targets)
    };
    let expected: Vec<f64> = (0..2).map(|_| plain.step(&[size; MICROBATCHES], RATE, None, loss_of).loss).collect();
    for (name, size) in
        [("1F1B", Size::new(4, MICROBATCHES)), ("ZBVZeroBubble", Size::new(2, MICROBATCHES).with_chunks(2))]
    {
        for split in [SplitBackward::Eager, SplitBackward::Captured] {
            let builder = Pipeline::builder().schedule(name, size).devices(vec![device.clone()]).split(split);
            let builder = builder.optimizer(|| AdamWConfig::new().init());
            let builder = builder.vocabulary(Vocabulary::new().head("scores", scores));
            let builder =
                builder.stages(|at: &StageContext| StageBox::new(Hidden { linear: linear(at.index, &at.device) }));
            let mut pipeline = builder.build().unwrap();
            let mut step = || pipeline.step(Batch::new(states()).target(words()), RATE).unwrap().loss;
            for (step, expected) in [step(), step()].into_iter().zip(&expected) {
                assert!((step - expected).abs() < 1e-5 * expected, "{name}, {split:?}: {step} for {expected}");
            }
            let plan = pipeline.plan(MICROBATCHES).unwrap();
            assert_eq!(plan.plan().first_trained(), FIRST);
            assert!(!plan.plan().any_task(|task| task.op().is_backward() && task.stage().index() < FIRST));
        }
    }
}
