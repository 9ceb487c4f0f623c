//! Random graphs: any stage sends values to any later ones, and all gradients are summed.

use crate::cases::{noise, range, read, sizes};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_pipeline::payload::Skips;
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Batch, Stage, StageBox, init_seeded};
use burn_pipeline::train::{Pipeline, StageContext};
use pipeline_tests::reference::{Reference, whole};
use proptest::prelude::{ProptestConfig, Strategy};
use proptest::proptest;
use std::collections::{BTreeMap, BTreeSet};

const WIDTH: usize = 4;

pub(crate) type Edges = BTreeSet<(usize, usize)>;

/// A skip's value: a hidden state, integers without gradient, and an optional tensor.
pub(crate) type Past = (Tensor<2>, Tensor<2, Int>, Option<Tensor<2>>);

/// One node of the graph, which is one stage.
#[derive(Module, Debug)]
struct Node {
    linear: Linear,
    index: usize,
    #[module(skip)]
    edges: Edges,
}

impl Node {
    fn new(index: usize, edges: &Edges, device: &Device) -> Self {
        let linear = init_seeded(70 + index as u64, device, |device| LinearConfig::new(WIDTH, WIDTH).init(device));
        Self { linear, index, edges: edges.clone() }
    }

    /// The node's value from its input and the skips that arrive.
    fn value(&self, x: Tensor<2>, past: Vec<Past>) -> Tensor<2> {
        let add = |x: Tensor<2>, (hidden, numbers, more): Past| {
            let x = x + hidden * numbers.float().mul_scalar(0.5);
            more.map_or(x.clone(), |more| x + more)
        };
        tanh(self.linear.forward(past.into_iter().fold(x, add)))
    }

    /// The values that the node sends along its skip edges.
    fn past(&self, value: &Tensor<2>) -> Vec<Past> {
        let own = self.edges.iter().filter(|(from, _)| *from == self.index);
        own.map(|&(_, to)| {
            let [samples, _] = value.dims();
            let numbers = Tensor::<1, Int>::arange(0..samples as i64, &value.device()).remainder_scalar(3);
            (value.clone(), numbers.reshape([samples, 1]), (to % 2 == 0).then(|| value.clone().square()))
        })
        .collect()
    }
}

impl Stage for Node {
    type Input = (Tensor<2>, Skips<Past>);
    type Extra = ();
    type Output = (Tensor<2>, Skips<Past>);

    fn forward(&self, (x, past): Self::Input, (): ()) -> Self::Output {
        let value = self.value(x, past.0);
        let past = self.past(&value);
        (value, Skips(past))
    }
}

/// The same graph on one device.
#[derive(Module, Debug)]
pub(crate) struct Graph {
    nodes: Vec<Node>,
}

impl Graph {
    pub(crate) fn new(stages: usize, edges: &Edges) -> Self {
        let device = whole().device;
        Self { nodes: (0..stages).map(|index| Node::new(index, edges, &device)).collect() }
    }

    pub(crate) fn forward(&self, mut x: Tensor<2>) -> Tensor<2> {
        let mut waiting: BTreeMap<usize, Vec<Past>> = BTreeMap::new();
        for node in &self.nodes {
            x = node.value(x, waiting.remove(&node.index).unwrap_or_default());
            let targets = node.edges.iter().filter(|(from, _)| *from == node.index).map(|(_, to)| *to);
            targets.zip(node.past(&x)).for_each(|(to, past)| waiting.entry(to).or_default().push(past));
        }
        x
    }
}

pub(crate) fn loss(y: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
    (y - target).square().mean()
}

pub(crate) fn rows(seed: u64, samples: usize) -> Tensor<2> {
    Tensor::from_data(TensorData::new(noise(seed, samples * WIDTH), [samples, WIDTH]), &Device::flex())
}

/// The stages of the graph with these edges, one per node.
pub(crate) fn factory(edges: &Edges) -> impl Fn(&StageContext) -> StageBox + Send + Sync + 'static {
    let edges = edges.clone();
    move |at| {
        let node = Node::new(at.index, &edges, &at.device);
        match at.is_last() {
            true => StageBox::with_loss(node, |(y, _): (Tensor<2>, Skips<Past>), target| loss(y, target)),
            false => StageBox::new(node),
        }
    }
}

/// A schedule with chunks, its size, edges between its stages, and samples.
fn cases() -> impl Strategy<Value = (&'static str, Size, Edges, usize)> {
    let schedules = [("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2), ("ZBV", 2), ("Interleaved1F1B", 3)];
    let ends = proptest::collection::vec((0usize..12, 0usize..12), 0..7);
    (0..schedules.len(), 1usize..=4, 1usize..=5, ends, 1usize..=7).prop_map(
        move |(schedule, ranks, microbatches, ends, samples)| {
            let (schedule, chunks) = schedules[schedule];
            let stages = ranks * chunks;
            let inside = ends.into_iter().map(|(from, to)| (from % stages, to % stages));
            let edges = inside.filter(|(from, to)| *to > from + 1).collect();
            (schedule, Size { ranks, chunks, microbatches }, edges, samples)
        },
    )
}

fn assert_close(got: &[f32], expected: &[f32], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (got, expected) in got.iter().zip(expected) {
        assert!((got - expected).abs() < 2e-5, "{what}: {got} for {expected}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_graph_over_any_schedule_has_the_gradients_of_one_device((schedule, size, edges, samples) in cases()) {
        let stages = size.ranks * size.chunks;
        let (x, target) = (rows(1, samples), rows(2, samples));
        let builder = Pipeline::builder().schedule(schedule, size).devices(vec![Device::flex()]);
        let builder = builder.stages(factory(&edges)).optimizer(|| AdamWConfig::new().init());
        let mut pipeline = edges.iter().fold(builder, |b, &(from, to)| b.skip(from, to)).build().unwrap();
        let mut reference = Reference::new(Graph::new(stages, &edges));
        let cut = sizes(samples, size.microbatches.min(samples));
        let expected = reference.step(&cut, 1e-2, None, |model, i| {
            let piece = |t: &Tensor<2>| t.clone().slice([range(&cut, i)]).autodiff();
            loss(model.forward(piece(&x)), piece(&target))
        });
        let batch = || Batch::new((x.clone(), Skips::<Past>(vec![]))).target(target.clone());
        let report = pipeline.accumulate(batch()).unwrap();
        let place = format!("{schedule} {size:?} {edges:?} {samples} samples");
        assert_close(&[report.loss as f32], &[expected.loss as f32], &place);
        let gradients = pipeline.take_gradients().unwrap();
        let gradients = gradients.iter().flatten().map(|g| g.as_ref().map(read).unwrap_or_default());
        for (got, expected) in gradients.zip(&expected.gradients) {
            assert_close(&got, expected, &place);
        }
    }
}
