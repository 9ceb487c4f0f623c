//! Matmuls added to running sums: the bits of the matmul by itself, added afterwards.

use crate::listed::Listed;
use crate::run::{Run, both, compiled, tensor, values};
use burn::backend::flex::FlexTensor;
use burn::backend::ir::{NumericOperationIr, OperationIr, TensorId, TensorIr};
use burn_pipeline_compile::{Mismatch, Tensors};
use proptest::prelude::{ProptestConfig, any, proptest};

/// A run whose caller has sums.
struct Summing {
    run: Run,
    sums: Vec<(TensorId, FlexTensor)>,
}

impl Tensors for Summing {
    type Error = Mismatch;

    fn read(&mut self, tensor: &TensorIr) -> FlexTensor {
        self.run.read(tensor)
    }

    fn write(&mut self, tensor: &TensorIr, value: FlexTensor) {
        self.run.write(tensor, value);
    }

    fn sum(&mut self, kept: TensorId) -> Option<FlexTensor> {
        let place = self.sums.iter().position(|(id, _)| *id == kept)?;
        Some(self.sums.swap_remove(place).1)
    }

    fn interpret(&mut self, operation: &OperationIr) -> Result<(), Mismatch> {
        self.run.interpret(operation)
    }
}

fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let value = |at: usize| ((at as u32).wrapping_mul(2_654_435_761) ^ seed) as f32 / u32::MAX as f32 - 0.5;
    (0..count).map(value).collect()
}

/// Adds the gradient of a linear layer's weight, of so many samples of so many rows, to a sum; returns whether the
/// program did, and whether the bits are those of the gradient added afterwards.
fn added([samples, rows, depth, columns]: [usize; 4], seed: u32) -> (bool, bool) {
    let mut listed = Listed::default();
    let (x, gradient) = (listed.feed(&[samples, rows, depth]), listed.feed(&[samples, rows, columns]));
    let turned = listed.swap(&x, 1, 2);
    let each = listed.matmul(&turned, &gradient);
    let summed = listed.reduce(NumericOperationIr::SumDim, &each, 0);
    let wanted = listed.reshape(&summed, &[depth, columns]);
    let fed = [
        tensor(numbers(samples * rows * depth, seed), &[samples, rows, depth]),
        tensor(numbers(samples * rows * columns, !seed), &[samples, rows, columns]),
    ];
    let (_, alone) = both(&listed, &fed, &[wanted.clone()]);
    let sum = numbers(depth * columns, seed / 3);
    let program = compiled(&listed, &[wanted.clone()]);
    let fed: Vec<(TensorIr, FlexTensor)> = listed.fed.iter().cloned().zip(fed).collect();
    let sums = vec![(wanted.id, tensor(sum.clone(), &[depth, columns]))];
    let mut run = Summing { run: Run::new(&fed), sums };
    program.run(0..program.len(), &mut run).unwrap();
    let taken = run.sums.is_empty();
    let expected: Vec<f32> = match taken {
        true => sum.iter().zip(&alone[0]).map(|(sum, value)| sum + value).collect(),
        false => alone[0].clone(),
    };
    (taken, values(run.read(&wanted)) == expected)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_product_is_added_to_a_sum_with_the_bits_of_both_steps(
        samples in 1..5_usize, rows in 1..180_usize, depth in 1..140_usize, columns in 1..140_usize, seed in any::<u32>(),
    ) {
        assert!(added([samples, rows, depth, columns], seed).1);
    }
}

#[test]
fn gradients_over_up_to_512_rows_are_added_to_sums() {
    assert_eq!(added([4, 128, 40, 30], 7), (true, true));
    // More rows would be added piece by piece, which rounds otherwise.
    assert_eq!(added([4, 129, 40, 30], 7), (false, true));
}
