//! Tensors that are not what a program was compiled for, at every door: before they were compared, steps read past
//! their memory.

use crate::listed::{Listed, unary};
use crate::run::{Run, compiled, tensor, wave};
use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::ir::{BinaryOpIr, MatmulOpIr, NumericOperationIr, OperationIr, TensorId, TensorIr};
use burn::tensor::{DType, Shape};
use burn_pipeline_compile::{Compiled, Mismatch, Tensors};
use proptest::prelude::*;
use std::collections::HashSet;

/// A run that gives something else for one tensor.
struct Told {
    run: Run,
    of: TensorId,
    instead: FlexTensor,
}

impl Tensors for Told {
    type Error = Mismatch;

    fn read(&mut self, tensor: &TensorIr) -> FlexTensor {
        let own = self.run.read(tensor);
        if tensor.id == self.of { self.instead.clone() } else { own }
    }

    fn sum(&mut self, kept: TensorId) -> Option<FlexTensor> {
        (kept == self.of).then(|| self.instead.clone())
    }

    fn write(&mut self, tensor: &TensorIr, value: FlexTensor) {
        self.run.write(tensor, value);
    }

    fn interpret(&mut self, operation: &OperationIr) -> Result<(), Mismatch> {
        self.run.interpret(operation)
    }
}

/// What a program answers to another tensor in the place of one of its own.
fn told(listed: &Listed, wanted: &TensorIr, of: TensorId, instead: FlexTensor) -> Result<(), Mismatch> {
    let fed = listed.fed.iter().map(|tensor| (tensor.clone(), wave(&tensor.shape, 0.3))).collect::<Vec<_>>();
    let program = compiled(listed, std::slice::from_ref(wanted));
    program.run(0..program.len(), &mut Told { run: Run::new(&fed), of, instead })
}

/// Elements in order, of which there are as many as are said, laid out as a shape.
fn laid(elements: usize, shape: &[usize]) -> FlexTensor {
    let storage = tensor(vec![1.0; elements], &[elements]);
    FlexTensor::from_arc(storage.data_arc(), Layout::contiguous(Shape::from(shape.to_vec())), DType::F32)
}

#[test]
fn what_an_operation_gives_in_another_shape_is_refused_by_its_name() {
    for last in ["matmul", "region"] {
        let mut listed = Listed::default();
        let (x, w) = (listed.feed(&[64, 8]), listed.feed(&[8, 8]));
        let own = listed.custom("wait", &x);
        let y = if last == "matmul" { listed.matmul(&own, &w) } else { listed.unary(unary("exp"), &own) };
        let error = told(&listed, &y, own.id, wave(&[1, 8], 0.1)).unwrap_err();
        assert_eq!(error.operation.as_deref(), Some("wait"));
        assert_eq!((&*error.expected, &*error.got), ("[64, 8] of F32", "[1, 8] of F32"));
        let says = "operation `wait` gave [1, 8] of F32 as %2[64, 8], but the program was compiled for [64, 8] of F32";
        assert_eq!((error.to_string(), format!("{error:?}")), (says.to_owned(), says.to_owned()));
    }
}

#[test]
fn a_running_sum_of_another_size_or_type_is_refused() {
    let mut listed = Listed::default();
    let (x, w) = (listed.feed(&[32, 16]), listed.feed(&[16, 32]));
    let y = listed.matmul(&x, &w);
    for wrong in [wave(&[32, 31], 0.1), laid(32, &[32, 32])] {
        assert!(told(&listed, &y, y.id, wrong).is_err());
    }
    told(&listed, &y, y.id, wave(&[32, 32], 0.1)).unwrap();
}

#[test]
fn a_product_whose_sizes_do_not_fit_is_left_to_the_interpreter() {
    let mut listed = Listed::default();
    let (x, w) = (listed.feed(&[4, 8]), listed.feed(&[2, 4]));
    let matmul = |out| {
        let op = MatmulOpIr { lhs: x.clone(), rhs: w.clone(), out };
        OperationIr::Float(DType::F32, burn::backend::ir::FloatOperationIr::Matmul(op))
    };
    let y = listed.make(&[4, 4], matmul);
    let add = |lhs: &TensorIr, rhs: &TensorIr, out| {
        let op = BinaryOpIr { lhs: lhs.clone(), rhs: rhs.clone(), out };
        OperationIr::NumericFloat(DType::F32, NumericOperationIr::Add(op))
    };
    let z = listed.make(&[400, 400], |out| add(&y, &x, out));
    let summary = Compiled::new(&listed.operations, HashSet::from([z.id]), None).summary();
    assert_eq!((summary.matmuls, summary.regions), (0, 0));
    assert_eq!(summary.interpreted.values().sum::<usize>(), 2);
}

proptest! {
    #[test]
    fn of_all_shapes_and_storages_only_the_programs_own_is_read(
        shape in prop::collection::vec(1_usize..5, 1..4), elements in 1_usize..40,
    ) {
        let mut listed = Listed::default();
        let x = listed.feed(&[3, 4]);
        let y = listed.unary(unary("exp"), &x);
        let taken = told(&listed, &y, x.id, laid(elements, &shape)).is_ok();
        prop_assert_eq!(taken, shape == [3, 4] && elements >= 12);
    }
}
