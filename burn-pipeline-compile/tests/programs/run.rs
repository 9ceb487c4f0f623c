//! Programs run both ways.

use crate::listed::Listed;
use burn::backend::Flex;
use burn::backend::flex::{FlexDevice, FlexTensor};
use burn::backend::ir::{HandleKind, OperationIr, TensorId, TensorIr, TensorStatus};
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Shape, TensorData};
use burn_pipeline_compile::{Compiled, Mismatch, Tensors};
use burn_router::{CustomOpRegistry, TensorInterpreter};
use std::collections::HashSet;

/// Burn's interpreter, with the number of tensors that are alive.
pub(crate) struct Run {
    interpreter: TensorInterpreter<Flex>,
    pub(crate) alive: HashSet<u64>,
}

impl Run {
    pub(crate) fn new(fed: &[(TensorIr, FlexTensor)]) -> Self {
        let interpreter = TensorInterpreter::with_custom_ops(FlexDevice, exchanges());
        let mut run = Self { interpreter, alive: HashSet::new() };
        fed.iter().for_each(|(tensor, value)| run.write(tensor, value.clone()));
        run
    }
}

/// A start, which only reads its input, and a wait, which gives it back doubled.
fn exchanges() -> CustomOpRegistry<Flex> {
    let mut known = CustomOpRegistry::new();
    known.register("start", |handles, op, _| drop(handles.get_float_tensor::<Flex>(&op.inputs[0])));
    known.register("wait", |handles, op, _| {
        let given = handles.get_float_tensor::<Flex>(&op.inputs[0]);
        handles.register_float_tensor::<Flex>(&op.outputs[0].id, Flex::float_add(given.clone(), given));
    });
    known
}

impl Tensors for Run {
    type Error = Mismatch;

    fn read(&mut self, tensor: &TensorIr) -> FlexTensor {
        assert!(self.alive.contains(&tensor.id.value()), "tensor {} is not there", tensor.id.value());
        if tensor.status == TensorStatus::ReadWrite {
            self.alive.remove(&tensor.id.value());
        }
        match self.interpreter.get_tensor(tensor) {
            HandleKind::Float(value) | HandleKind::Int(value) | HandleKind::Bool(value) => value,
            HandleKind::Quantized(_) => panic!("no program here has quantized tensors"),
        }
    }

    fn write(&mut self, tensor: &TensorIr, value: FlexTensor) {
        assert_eq!(value.layout().shape(), &tensor.shape, "a tensor has the program's shape");
        assert_eq!(value.dtype(), tensor.dtype);
        self.alive.insert(tensor.id.value());
        let value = if tensor.dtype.is_bool() { HandleKind::Bool(value) } else { HandleKind::Float(value) };
        self.interpreter.register_tensor_to_device(tensor.id, value);
    }

    fn interpret(&mut self, operation: &OperationIr) -> Result<(), Mismatch> {
        let released = operation.inputs().filter(|input| input.status == TensorStatus::ReadWrite);
        for input in released {
            self.alive.remove(&input.id.value());
        }
        self.alive.extend(operation.outputs().map(|output| output.id.value()));
        self.interpreter.register_op(operation.clone());
        Ok(())
    }
}

pub(crate) fn tensor(values: Vec<f32>, shape: &[usize]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape.to_vec()))
}

/// Values that differ from place to place.
pub(crate) fn wave(shape: &[usize], speed: f32) -> FlexTensor {
    let count: usize = shape.iter().product();
    tensor((0..count).map(|at| (at as f32 * speed).sin() * 3.0).collect(), shape)
}

/// Asserts that values are equal but for rounding, beside the largest.
pub(crate) fn near(expected: &[Vec<f32>], given: &[Vec<f32>]) {
    for (expected, given) in expected.iter().zip(given) {
        assert_eq!(expected.len(), given.len());
        let size = expected.iter().fold(1e-6_f32, |most, value| most.max(value.abs()));
        for (place, (expected, given)) in expected.iter().zip(given).enumerate() {
            assert!((expected - given).abs() <= 1e-5 * size, "{given} instead of {expected} at {place}, size {size}");
        }
    }
}

pub(crate) fn values(tensor: FlexTensor) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// What each way gives for `wanted`: one by one, and compiled.
pub(crate) fn both(listed: &Listed, fed: &[FlexTensor], wanted: &[TensorIr]) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let fed: Vec<(TensorIr, FlexTensor)> = listed.fed.iter().cloned().zip(fed.iter().cloned()).collect();
    let mut plain = Run::new(&fed);
    listed.operations.iter().for_each(|op| plain.interpret(op).unwrap());
    let expected = wanted.iter().map(|tensor| values(plain.read(tensor))).collect();
    let (program, mut compiled) = (compiled(listed, wanted), Run::new(&fed));
    let held = held(listed);
    held.iter().for_each(|(tensor, value)| compiled.write(tensor, value.clone()));
    program.run(0..program.len(), &mut compiled).unwrap();
    for (tensor, value) in held {
        let mut last = tensor;
        last.status = TensorStatus::ReadWrite;
        assert_eq!(values(compiled.read(&last)), values(value), "what another program holds stays as it is\n{program}");
    }
    let read: HashSet<u64> = listed.operations.iter().flat_map(OperationIr::inputs).map(|t| t.id.value()).collect();
    let unread = listed.fed.iter().map(|tensor| tensor.id.value()).filter(|id| !read.contains(id));
    let left: HashSet<u64> = wanted.iter().map(|tensor| tensor.id.value()).chain(unread).collect();
    assert_eq!(compiled.alive, left, "only what is kept is there\n{program}");
    (expected, wanted.iter().map(|tensor| values(compiled.read(tensor))).collect())
}

/// What other programs of the same microbatch hold: tensors with the next ids.
fn held(listed: &Listed) -> Vec<(TensorIr, FlexTensor)> {
    let ids = listed.operations.iter().flat_map(OperationIr::nodes).map(|tensor| tensor.id.value());
    let next = ids.chain(listed.fed.iter().map(|fed| fed.id.value())).max().map_or(0, |id| id + 1);
    let of = |id: u64| TensorIr::uninit(TensorId::new(id), Shape::from(vec![1]), DType::F32);
    (next..next + 20).map(|id| (of(id), tensor(vec![id as f32], &[1]))).collect()
}

pub(crate) fn compiled(listed: &Listed, wanted: &[TensorIr]) -> Compiled {
    Compiled::new(&listed.operations, wanted.iter().map(|tensor| tensor.id).collect(), None)
}
