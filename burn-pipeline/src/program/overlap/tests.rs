//! Random programs: the order that the pass must keep, the overlap that it makes, and the numbers of the programs.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use super::{Kind, UNDER_WAY, overlapped};
use crate::payload::AnyTensor;
use crate::program::{
    CapturedOp, CustomOps, Edges, Phase, Program, Recording, Replay, StagePrograms, Sums, interpreter,
};
use burn::backend::ir::{
    BinaryOpIr, CustomOpIr, FloatOperationIr, MatmulOpIr, NumericOperationIr, OperationIr, RandomOpIr, ScalarIr,
    ScalarOpIr, TensorId, TensorIr,
};
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, DispatchTensor, TensorMetadata};
use burn::tensor::{DType, Device, Distribution, Shape, Tensor, TensorData};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};

/// What ran, in order.
type Log = Arc<Mutex<Vec<String>>>;

/// An exchange with a rank that has the same tensor: it gives the sum.
#[derive(Clone, Debug)]
struct Exchange {
    number: usize,
    half: &'static str,
    log: Log,
}

impl CapturedOp for Exchange {
    fn name(&self) -> String {
        format!("{}{}", self.half, self.number)
    }

    fn outputs(&self, inputs: &[(Shape, DType)]) -> Vec<(Shape, DType)> {
        if self.half == START { Vec::new() } else { inputs.to_vec() }
    }

    fn is_collective(&self) -> bool {
        true
    }

    fn halves(&self) -> Option<[Arc<dyn CapturedOp>; 2]> {
        let half = |half| -> Arc<dyn CapturedOp> { Arc::new(Self { half, ..self.clone() }) };
        (self.half == WHOLE).then(|| [half(START), half(WAIT)])
    }

    fn run(&self, inputs: Vec<DispatchTensor>) -> Vec<DispatchTensor> {
        self.log.lock().unwrap().push(self.name());
        let sum = |own: DispatchTensor| Dispatch::float_add(own.clone(), own);
        if self.half == START { Vec::new() } else { inputs.into_iter().map(sum).collect() }
    }
}

const WHOLE: &str = "exchange ";
const START: &str = "start ";
const WAIT: &str = "wait ";

/// One operation; numbers select among the tensors so far.
#[derive(Clone, Copy, Debug)]
enum Step {
    Add(usize, usize),
    Halve(usize),
    Multiply(usize, usize),
    Exchange(usize),
    Draw,
}

fn step() -> impl Strategy<Value = Step> {
    let at = 0..1000_usize;
    prop_oneof![
        3 => (at.clone(), at.clone()).prop_map(|(x, y)| Step::Add(x, y)),
        2 => at.clone().prop_map(Step::Halve),
        2 => (at.clone(), at.clone()).prop_map(|(x, y)| Step::Multiply(x, y)),
        3 => at.prop_map(Step::Exchange),
        1 => Just(Step::Draw),
    ]
}

/// A list of operations on matrices of one size.
#[derive(Default)]
struct Listed {
    operations: Vec<OperationIr>,
    exchanges: Vec<Arc<dyn CapturedOp>>,
    tensors: Vec<TensorIr>,
    log: Log,
}

impl Listed {
    fn tensor(&mut self) -> TensorIr {
        let tensor = TensorIr::uninit(TensorId::new(self.tensors.len() as u64), Shape::new([3, 3]), DType::F32);
        self.tensors.push(tensor.clone());
        tensor
    }

    fn grow(&mut self, step: Step) {
        let pick = |at: usize| self.tensors[at % self.tensors.len()].clone();
        let picked = match step {
            Step::Add(x, y) | Step::Multiply(x, y) => vec![pick(x), pick(y)],
            Step::Halve(x) | Step::Exchange(x) => vec![pick(x)],
            Step::Draw => Vec::new(),
        };
        let out = self.tensor();
        let numeric = |op| OperationIr::NumericFloat(DType::F32, op);
        let float = |op| OperationIr::Float(DType::F32, op);
        let op = match (step, &picked[..]) {
            (Step::Add(..), [lhs, rhs]) => {
                numeric(NumericOperationIr::Add(BinaryOpIr { lhs: lhs.clone(), rhs: rhs.clone(), out }))
            }
            (Step::Multiply(..), [lhs, rhs]) => {
                float(FloatOperationIr::Matmul(MatmulOpIr { lhs: lhs.clone(), rhs: rhs.clone(), out }))
            }
            (Step::Halve(_), [lhs]) => {
                let op = ScalarOpIr { lhs: lhs.clone(), rhs: ScalarIr::Float(0.5), out };
                numeric(NumericOperationIr::MulScalar(op))
            }
            (Step::Exchange(_), [input]) => {
                let number = self.exchanges.len();
                let op = Exchange { number, half: WHOLE, log: self.log.clone() };
                let (id, inputs, outputs) = (op.name(), vec![input.clone()], vec![out]);
                self.exchanges.push(Arc::new(op));
                OperationIr::Custom(CustomOpIr { id, inputs, outputs, scalars: Vec::new() })
            }
            _ => float(FloatOperationIr::Random(RandomOpIr { out, distribution: Distribution::Default })),
        };
        self.operations.push(op);
    }

    fn custom(&self) -> CustomOps {
        CustomOps::of(self.exchanges.clone())
    }
}

fn kind(op: &OperationIr) -> Kind {
    match op {
        OperationIr::Custom(op) if op.id.starts_with(START) => Kind::Starts,
        OperationIr::Custom(op) if op.id.starts_with(WAIT) => Kind::Waits,
        _ => Kind::Computes,
    }
}

fn number(op: &OperationIr) -> usize {
    let OperationIr::Custom(op) = op else { panic!("{op:?} is no exchange") };
    op.id.rsplit(' ').next().unwrap().parse().unwrap()
}

fn makes(op: &OperationIr) -> Option<TensorId> {
    op.outputs().next().map(|output| output.id)
}

/// The tensors that each tensor is computed from, itself among them.
fn ancestors(operations: &[OperationIr]) -> HashMap<TensorId, HashSet<TensorId>> {
    let mut all: HashMap<TensorId, HashSet<TensorId>> = HashMap::new();
    for op in operations {
        let Some(made) = makes(op) else { continue };
        let mut from = HashSet::from([made]);
        op.inputs().for_each(|input| from.extend(all.get(&input.id).into_iter().flatten()));
        all.insert(made, from);
    }
    all
}

fn check_order(listed: &Listed) {
    let order = overlapped(listed.operations.clone(), &listed.custom());
    let exchanges = listed.exchanges.len();
    assert_eq!(order.len(), listed.operations.len() + exchanges, "each is there once, exchanges as two");
    let mut made: HashSet<TensorId> = listed.tensors.iter().map(|tensor| tensor.id).collect();
    listed.operations.iter().for_each(|op| made.retain(|id| makes(op) != Some(*id)));
    let (mut started, mut awaited) = (0, 0);
    for op in &order {
        assert!(op.inputs().all(|input| made.contains(&input.id)), "it comes after what it reads: {op:?}");
        made.extend(makes(op));
        match kind(op) {
            Kind::Starts => {
                assert_eq!(number(op), started, "starts keep their order");
                started += 1;
            }
            Kind::Waits => {
                assert_eq!(number(op), awaited, "waits keep that order");
                awaited += 1;
            }
            Kind::Computes => assert!(listed.operations.contains(op), "it is what it was: {op:?}"),
        }
        assert!(awaited <= started && started - awaited <= UNDER_WAY);
    }
    assert_eq!((started, awaited, made.len()), (exchanges, exchanges, listed.tensors.len()));
    let draws = |operations: &[OperationIr]| -> Vec<OperationIr> {
        operations.iter().filter(|op| super::draw(op).is_some()).cloned().collect()
    };
    assert_eq!(draws(&order), draws(&listed.operations));
    check_room(listed, &order);
}

/// Starts come as early, and waits as late, as the recorded order and the other exchanges allow.
fn check_room(listed: &Listed, order: &[OperationIr]) {
    let ancestors = ancestors(&listed.operations);
    let recorded: HashMap<TensorId, usize> =
        listed.operations.iter().enumerate().map(|(place, op)| (makes(op).unwrap(), place)).collect();
    let exchange = |number: usize| {
        let at = |op: &OperationIr| matches!(op, OperationIr::Custom(_)) && self::number(op) == number;
        listed.operations.iter().position(at).unwrap()
    };
    let draws = order.iter().any(|op| super::draw(op).is_some());
    for (place, op) in order.iter().enumerate() {
        let since = order[..place].iter().rposition(|op| kind(op) != Kind::Computes).map_or(0, |at| at + 1);
        if kind(op) == Kind::Starts && !draws {
            let operand = op.inputs().next().unwrap().id;
            let needed =
                |op: &OperationIr| ancestors.get(&operand).is_some_and(|all| all.contains(&makes(op).unwrap()));
            assert!(order[since..place].iter().all(needed), "it waits for what it does not need: {op:?}");
        }
        if kind(op) == Kind::Waits {
            let started = order[..place].iter().filter(|op| kind(op) == Kind::Starts).count();
            let open: Vec<TensorId> =
                (number(op)..started).map(|n| makes(&listed.operations[exchange(n)]).unwrap()).collect();
            let reads = |op: &OperationIr| op.inputs().any(|input| open.contains(&input.id));
            let reader = listed.operations.iter().position(reads).unwrap_or(usize::MAX);
            let next = (started..listed.exchanges.len()).map(exchange).next().unwrap_or(usize::MAX);
            let mut later =
                order[place + 1..].iter().filter(|op| kind(op) == Kind::Computes).map(|op| makes(op).unwrap());
            let could = |made: &TensorId| {
                recorded[made] < reader.min(next) && ancestors[made].is_disjoint(&open.iter().copied().collect())
            };
            assert_eq!(later.find(could), None, "it could run before {op:?}");
        }
    }
}

/// A stage of random operations; those after the seed are its backward.
fn recorded(forward: &[Step], backward: &[Step]) -> (Recording, Log) {
    let mut listed = Listed::default();
    let (input, parameter) = (listed.tensor(), listed.tensor());
    forward.iter().for_each(|&step| listed.grow(step));
    let output = listed.tensors.last().unwrap().clone();
    let seed = listed.tensor();
    let first = listed.operations.len();
    backward.iter().for_each(|&step| listed.grow(step));
    let mut of_seed = HashSet::from([seed.id]);
    for op in &listed.operations[first..] {
        if op.inputs().any(|input| of_seed.contains(&input.id)) {
            of_seed.extend(makes(op));
        }
    }
    let gradients: Vec<TensorIr> =
        listed.tensors.iter().filter(|tensor| of_seed.contains(&tensor.id)).cloned().collect();
    let (input_gradient, weight_gradient) = (gradients.last().unwrap(), &gradients[gradients.len() / 2]);
    let edges = Edges {
        inputs: vec![input],
        parameters: vec![parameter],
        seeds: vec![Some(seed)],
        outputs: vec![output],
        input_gradients: vec![Some(input_gradient.clone())],
        weight_gradients: vec![(0, weight_gradient.clone())],
    };
    let custom = listed.custom();
    (Recording::new(listed.operations, BTreeMap::new(), edges, custom), listed.log)
}

fn value(seed: usize) -> DispatchTensor {
    let values = (0..9).map(|at| ((at * 7 + seed * 5) % 9) as f32 / 4.0 - 1.0).collect::<Vec<f32>>();
    AnyTensor::from_data(TensorData::new(values, [3, 3]), &Device::flex()).into_dispatch()
}

fn fed(recording: &Recording) -> Vec<(TensorId, DispatchTensor)> {
    let edges = &recording.edges;
    let all = edges.inputs.iter().chain(&edges.parameters).chain(edges.seeds.iter().flatten());
    all.enumerate().map(|(place, tensor)| (tensor.id, value(place))).collect()
}

fn bits(tensor: DispatchTensor) -> Vec<u32> {
    assert_eq!(tensor.shape(), Shape::new([3, 3]));
    Tensor::<2>::from_dispatch(tensor).into_data().iter::<f32>().map(f32::to_bits).collect()
}

fn generator() -> rand::rngs::StdRng {
    rand::SeedableRng::seed_from_u64(3)
}

/// Output, input's gradient and weight's gradient of the operations as recorded.
fn plain(recording: &Recording) -> Vec<Vec<u32>> {
    let mut replay = interpreter(&Device::flex(), &recording.custom).unwrap();
    replay.draw_from(generator());
    fed(recording).into_iter().for_each(|(id, value)| replay.feed(id, value).unwrap());
    replay.run(&recording.operations).unwrap();
    let edges = &recording.edges;
    let wanted = edges.outputs.iter().chain(edges.input_gradients.iter().flatten());
    wanted.chain(edges.weight_gradients.iter().map(|(_, edge)| edge)).map(|edge| bits(replay.take(edge))).collect()
}

fn run(program: &Program, replay: &mut dyn Replay, fed: &[(TensorId, DispatchTensor)]) -> Vec<Vec<u32>> {
    let read = fed.iter().filter(|(id, _)| program.feeds.iter().any(|feed| feed.id == *id));
    read.for_each(|(id, value)| replay.feed(*id, value.clone()).unwrap());
    program.run(0..program.pieces(), replay, &mut Sums::new()).unwrap();
    program.takes.iter().map(|tensor| bits(replay.take(tensor))).collect()
}

/// The same from a stage's programs, run in this order.
fn programs(recording: &Recording, programs: &StagePrograms, phases: &[Phase]) -> Vec<Vec<u32>> {
    let mut replay = interpreter(&Device::flex(), &programs.custom).unwrap();
    replay.draw_from(generator());
    let fed = fed(recording);
    phases.iter().flat_map(|&phase| run(programs.program(phase), &mut *replay, &fed)).collect()
}

/// Takes what was logged, as starts and waits.
fn taken(log: &Log) -> Vec<String> {
    std::mem::take(&mut *log.lock().unwrap())
}

fn of(half: &str, log: &[String]) -> Vec<String> {
    log.iter().filter_map(|entry| entry.strip_prefix(half)).map(str::to_owned).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_order_of_exchanges_and_every_dependency_are_kept_and_room_is_made(
        steps in prop::collection::vec(step(), 0..60)
    ) {
        let mut listed = Listed::default();
        (0..3).for_each(|_| drop(listed.tensor()));
        steps.into_iter().for_each(|step| listed.grow(step));
        check_order(&listed);
    }

    #[test]
    fn programs_give_the_bits_of_the_recorded_order(
        forward in prop::collection::vec(step(), 1..20), backward in prop::collection::vec(step(), 1..30)
    ) {
        let (recording, log) = recorded(&forward, &backward);
        let expected = plain(&recording);
        let recorded_order = of(WHOLE, &taken(&log));
        let made = StagePrograms::new(&recording);
        let ways: [&[Phase]; 2] =
            [&[Phase::Forward, Phase::Backward], &[Phase::Forward, Phase::Input, Phase::Weight]];
        let mut orders = Vec::new();
        for phases in ways {
            prop_assert_eq!(&programs(&recording, &made, phases), &expected, "{}", made);
            let ran = taken(&log);
            let (starts, waits) = (of(START, &ran), of(WAIT, &ran));
            prop_assert_eq!(&starts, &waits);
            orders.push(starts);
        }
        prop_assert_eq!(&orders[0], &orders[1]);
        let mut sorted = [orders[0].clone(), recorded_order];
        sorted.iter_mut().for_each(|order| order.sort());
        prop_assert_eq!(&sorted[0], &sorted[1], "no exchange is left out");
        let compiled = StagePrograms::compiled(&recording, &Device::flex(), None);
        prop_assert!(compiled.is_compiled());
        for phases in ways {
            prop_assert_eq!(programs(&recording, &compiled, phases).len(), expected.len());
            let ran = taken(&log);
            prop_assert_eq!(&of(START, &ran), &orders[0], "members may be compiled or not");
            prop_assert_eq!(&of(WAIT, &ran), &orders[0]);
        }
    }
}

#[test]
fn a_weights_gradient_runs_between_start_and_wait() {
    // As autodiff records a column-parallel layer: the input's gradient, the weight's, the exchange of the first,
    // what reads that.
    let mut listed = Listed::default();
    let (g, w) = (listed.tensor(), listed.tensor());
    let of = |tensor: &TensorIr| tensor.id.value() as usize;
    let steps = [Step::Multiply(of(&g), of(&w)), Step::Multiply(of(&w), of(&g)), Step::Exchange(2), Step::Halve(4)];
    steps.into_iter().for_each(|step| listed.grow(step));
    let order = overlapped(listed.operations.clone(), &listed.custom());
    let kinds: Vec<Kind> = order.iter().map(kind).collect();
    assert_eq!(kinds, [Kind::Computes, Kind::Starts, Kind::Computes, Kind::Waits, Kind::Computes]);
    assert_eq!(order[2], listed.operations[1]);
}
