//! One program or two: a linear layer's backward has the same bits as `B`, and as `I` and `W`.
//!
//! `I` makes views that `W` is fed. So a program must not choose the order of a sum by how an operand is stored: it
//! sees that only of tensors that it makes itself.

use crate::halves::cast;
use crate::listed::Listed;
use crate::run::{Run, tensor, values};
use burn::backend::flex::FlexTensor;
use burn::backend::ir::{NumericOperationIr, OperationIr, TensorId, TensorIr};
use burn::tensor::DType;
use burn_pipeline_compile::{Bf16, Compiled, Parts, Tensors};
use proptest::prelude::*;
use std::collections::HashSet;

/// How a tensor of samples, rows and columns is made of one that is fed.
#[derive(Clone, Copy, Debug)]
enum Made {
    Fed,
    Swapped,
    /// Without the first column.
    Cut,
    Computed,
    /// Of `bf16`.
    Widened,
}

fn made() -> impl Strategy<Value = Made> {
    prop_oneof![Just(Made::Fed), Just(Made::Swapped), Just(Made::Cut), Just(Made::Computed), Just(Made::Widened)]
}

/// A number of products, at times more than are summed at once.
fn size() -> impl Strategy<Value = usize> {
    prop_oneof![7 => 1..40_usize, 1 => 513..700_usize]
}

/// How matmuls treat `f32`.
fn parts() -> impl Strategy<Value = Option<Parts>> {
    prop_oneof![Just(None), Just(Some(Parts::One)), Just(Some(Parts::Two)), Just(Some(Parts::Three))]
}

/// Feeds a tensor, and makes one of this shape of it.
fn feed(listed: &mut Listed, made: Made, [samples, rows, columns]: [usize; 3]) -> TensorIr {
    match made {
        Made::Fed => listed.feed(&[samples, rows, columns]),
        Made::Swapped => {
            let fed = listed.feed(&[samples, columns, rows]);
            listed.swap(&fed, 1, 2)
        }
        Made::Cut => {
            let fed = listed.feed(&[samples, rows, columns + 1]);
            listed.slice(&fed, 2, 1)
        }
        Made::Computed => {
            let fed = listed.feed(&[samples, rows, columns]);
            listed.scalar(NumericOperationIr::MulScalar, &fed, 0.7)
        }
        Made::Widened => {
            let fed = listed.feed(&[samples, rows, columns]);
            let fed = TensorIr { dtype: DType::BF16, ..fed };
            listed.fed.pop();
            listed.fed.push(fed.clone());
            listed.cast(&fed, DType::F32)
        }
    }
}

/// Runs operations as one program after the other; each keeps what later ones read, and what is wanted.
fn run(
    programs: &[&[OperationIr]],
    rounded: Option<Bf16>,
    fed: &[(TensorIr, FlexTensor)],
    wanted: &[TensorIr],
) -> Vec<Vec<f32>> {
    let mut run = Run::new(fed);
    for (place, operations) in programs.iter().enumerate() {
        let later = programs[place + 1..].iter().flat_map(|later| later.iter()).flat_map(OperationIr::inputs);
        let kept: HashSet<TensorId> = later.chain(wanted).map(|tensor| tensor.id).collect();
        let program = Compiled::new(operations, kept, rounded);
        program.run(0..program.len(), &mut run).unwrap();
    }
    wanted.iter().map(|tensor| values(run.read(tensor))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn gradients_have_the_same_bits_in_one_program_and_in_two(
        (of_input, of_gradient) in (made(), made()),
        [samples, depth] in [1..5_usize, 1..40_usize],
        [rows, columns] in [size(), size()],
        (parts, biased, seed) in (parts(), any::<bool>(), any::<u32>()),
    ) {
        let mut listed = Listed::default();
        let x = feed(&mut listed, of_input, [samples, rows, depth]);
        let gradient = feed(&mut listed, of_gradient, [samples, rows, columns]);
        let (weight, other) = (listed.feed(&[1, columns, depth]), listed.feed(&[1, depth, columns]));
        let of_x = listed.matmul(&gradient, &weight);
        let before = listed.operations.len();
        let turned = listed.swap(&x, 1, 2);
        let each = listed.matmul(&turned, &gradient);
        let summed = listed.reduce(NumericOperationIr::SumDim, &each, 0);
        let of_weight = listed.reshape(&summed, &[depth, columns]);
        let (of_bias, of_rows) = (listed.sum_dims(&gradient, &[0, 1]), listed.matmul(&x, &other));
        let number = |at: usize| ((at as u32).wrapping_mul(2_654_435_761) ^ seed) as f32 / u32::MAX as f32 - 0.5;
        let filled =
            |fed: &TensorIr| cast(&tensor((0..fed.shape.num_elements()).map(number).collect(), &fed.shape), fed.dtype);
        let fed: Vec<(TensorIr, FlexTensor)> = listed.fed.iter().map(|fed| (fed.clone(), filled(fed))).collect();
        let wanted = [of_x, of_weight, of_rows, of_bias];
        // What only matmuls read is stored otherwise.
        let wanted = &wanted[..if biased { 4 } else { 3 }];
        let (first, second) = listed.operations.split_at(before);
        let rounded = parts.and_then(Bf16::detect);
        let of = |programs: &[&[OperationIr]]| run(programs, rounded, &fed, wanted);
        prop_assert_eq!(of(&[&listed.operations]), of(&[first, second]));
    }
}
