//! What a stage's forward holds for its backward, after [`hold_less`].

use crate::listed::{Listed, binary, unary};
use crate::run::{Run, tensor, values};
use burn::backend::ir::{NumericOperationIr, OperationIr, TensorIr};
use burn_pipeline_compile::{Tensors, hold_less};
use std::collections::HashSet;

/// A forward, then a backward that begins at this place, and what it gives.
struct Written {
    listed: Listed,
    backward: usize,
    gives: Vec<TensorIr>,
}

impl Written {
    fn after(&self) -> Vec<OperationIr> {
        let forward: Vec<bool> = (0..self.listed.operations.len()).map(|place| place < self.backward).collect();
        hold_less(&self.listed.operations, &forward)
    }

    /// Tensors of the forward that these operations' needed ones read after it.
    fn held(&self, operations: &[OperationIr]) -> HashSet<u64> {
        let made = |op: &OperationIr| op.outputs().map(|output| output.id.value()).collect::<Vec<_>>();
        let forward: HashSet<u64> = operations[..self.backward].iter().flat_map(made).collect();
        let mut needed: HashSet<u64> = self.gives.iter().map(|given| given.id.value()).collect();
        for op in operations[self.backward..].iter().rev().filter(|op| !matches!(op, OperationIr::Drop(_))) {
            if made(op).iter().any(|output| needed.contains(output)) {
                needed.extend(op.inputs().map(|input| input.id.value()));
            }
        }
        forward.intersection(&needed).copied().collect()
    }

    /// What the backward gives, with these operations.
    fn run(&self, operations: &[OperationIr], fed: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let shapes = self.listed.fed.iter().map(|fed| fed.shape.to_vec());
        let fed = fed.iter().zip(shapes).map(|(values, shape)| tensor(values.clone(), &shape));
        let mut run = Run::new(&self.listed.fed.iter().cloned().zip(fed).collect::<Vec<_>>());
        operations.iter().for_each(|op| run.interpret(op).unwrap());
        self.gives.iter().map(|given| values(run.read(given))).collect()
    }
}

/// A softmax and its backward, as autodiff decomposes it.
fn softmax(shape: &[usize]) -> (Written, TensorIr) {
    let mut listed = Listed::default();
    let (x, gradient) = (listed.feed(shape), listed.feed(shape));
    let last = shape.len() - 1;
    let max = listed.reduce(NumericOperationIr::MaxDim, &x, last);
    let shifted = listed.binary(binary("sub"), &x, &max);
    let exp = listed.unary(unary("exp"), &shifted);
    let sum = listed.reduce(NumericOperationIr::SumDim, &exp, last);
    let result = listed.binary(binary("div"), &exp, &sum);
    let backward = listed.operations.len();
    // The matmul that uses the result reads it in its backward.
    let other = listed.binary(binary("mul"), &gradient, &result);
    let from_dividend = listed.binary(binary("div"), &gradient, &sum);
    let negative = listed.unary(unary("neg"), &exp);
    let square = listed.binary(binary("mul"), &sum, &sum);
    let slope = listed.binary(binary("div"), &negative, &square);
    let each = listed.binary(binary("mul"), &gradient, &slope);
    let from_divisor = listed.reduce(NumericOperationIr::SumDim, &each, last);
    let all = listed.binary(binary("add"), &from_dividend, &from_divisor);
    let again = listed.unary(unary("exp"), &shifted);
    let given = listed.binary(binary("mul"), &all, &again);
    (Written { listed, backward, gives: vec![given, other] }, result)
}

fn wave(count: usize, speed: f32) -> Vec<f32> {
    (0..count).map(|at| (at as f32 * speed).sin() * 3.0).collect()
}

#[test]
fn of_a_softmax_the_result_and_a_number_for_each_row_are_held() {
    let (written, result) = softmax(&[5, 33]);
    let after = written.after();
    let sizes = |operations: &[OperationIr]| {
        let held = written.held(operations);
        let made = operations.iter().flat_map(OperationIr::outputs).filter(|output| held.contains(&output.id.value()));
        let mut sizes: Vec<usize> = made.map(|tensor| tensor.shape.num_elements()).collect();
        sizes.sort_unstable();
        sizes
    };
    assert_eq!(sizes(&written.listed.operations), [5, 165, 165, 165]);
    assert_eq!(sizes(&after), [5, 165]);
    assert!(written.held(&after).contains(&result.id.value()));
    let fed = [wave(165, 0.37), wave(165, 0.11)];
    let (expected, given) = (written.run(&written.listed.operations, &fed), written.run(&after, &fed));
    for (expected, given) in expected.iter().flatten().zip(given.iter().flatten()) {
        assert!((expected - given).abs() <= 2e-6, "{given} instead of {expected}");
    }
}

#[test]
fn a_dividend_stays_where_the_divisor_may_be_zero() {
    let mut listed = Listed::default();
    let (x, rows) = (listed.feed(&[4, 7]), listed.feed(&[4, 1]));
    let dividend = listed.unary(unary("neg"), &x);
    let divisor = listed.unary(unary("relu"), &rows);
    let quotient = listed.binary(binary("div"), &dividend, &divisor);
    let backward = listed.operations.len();
    let first = listed.binary(binary("mul"), &dividend, &quotient);
    let second = listed.binary(binary("mul"), &first, &divisor);
    let written = Written { listed, backward, gives: vec![second] };
    let after = written.after();
    assert_eq!(written.held(&after), written.held(&written.listed.operations));
    assert_eq!(after.len(), written.listed.operations.len());
}

#[test]
fn a_dividend_that_the_forward_uses_otherwise_stays() {
    let (mut written, _) = softmax(&[4, 7]);
    let exp = written.listed.operations[2].outputs().next().unwrap().clone();
    let log = unary("log");
    let other = written.listed.unary(log, &exp);
    let op = written.listed.operations.pop().unwrap();
    written.listed.operations.insert(written.backward, op);
    written.backward += 1;
    written.gives.push(other);
    let after = written.after();
    assert!(written.held(&after).contains(&exp.id.value()));
}
