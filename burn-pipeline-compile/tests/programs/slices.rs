//! Slices, what is assigned to them, and their gradients.

use crate::listed::{Listed, binary, unary};
use crate::run::{both, compiled, near, wave};
use burn::backend::ir::{BaseOperationIr, NumericOperationIr, OperationIr, SliceAssignOpIr};
use burn::tensor::Slice;
use proptest::prelude::{ProptestConfig, any, prop, prop_assert_eq, proptest};

#[test]
fn gradients_of_slices_are_written_side_by_side() {
    let mut listed = Listed::default();
    let x = listed.feed(&[2, 3, 7, 5]);
    // Two matmuls of heads, whose heads are joined, and a third value: 12, 12 and 6 of 30 columns.
    let mut sum: Option<burn::backend::ir::TensorIr> = None;
    for part in 0..2 {
        let y = listed.feed(&[2, 3, 5, 4]);
        let matmul = listed.matmul(&x, &y);
        let turned = listed.swap(&matmul, 1, 2);
        let joined = listed.reshape(&turned, &[2, 7, 12]);
        let placed = listed.placed(&joined, &[2, 7, 30], 2, part * 12);
        sum = Some(sum.map_or(placed.clone(), |sum| listed.binary(binary("add"), &sum, &placed)));
    }
    let value = listed.feed(&[2, 7, 6]);
    let placed = listed.placed(&value, &[2, 7, 30], 2, 24);
    let sum = listed.binary(binary("add"), &sum.unwrap(), &placed);
    let summary = compiled(&listed, &[sum.clone()]).summary();
    assert_eq!((summary.regions, summary.interpreted.len()), (0, 0), "{summary}");
    let heads = |speed| wave(&[2, 3, 5, 4], speed);
    let fed = [wave(&[2, 3, 7, 5], 0.3), heads(0.7), heads(0.5), wave(&[2, 7, 6], 0.2)];
    let (expected, given) = both(&listed, &fed, &[sum]);
    near(&expected, &given);
}

#[test]
fn a_gradient_of_one_slice_leaves_zeros_beside_it() {
    let mut listed = Listed::default();
    let value = listed.feed(&[3, 4]);
    let placed = listed.placed(&value, &[3, 9], 1, 2);
    let (expected, given) = both(&listed, &[wave(&[3, 4], 0.3)], &[placed]);
    assert_eq!(expected, given);
}

#[test]
fn steps_that_are_collected_are_written_once_and_their_gradients_are_slices() {
    // What a recurrent layer and its backward do: each step is assigned to the tensor of all, and from the last to the
    // first, each takes its slice of the gradient and leaves zeros there.
    let (steps, shape) = (5, [3, 5, 8]);
    let mut listed = Listed::default();
    let mut all = listed.empty(&shape);
    let mut fed = Vec::new();
    for step in 0..steps {
        let x = listed.feed(&[3, 1, 8]);
        fed.push(wave(&[3, 1, 8], 0.2 + step as f32));
        let hidden = listed.unary(unary("tanh"), &x);
        all = listed.assign(&all, &hidden, 1, step);
    }
    let mut gradient = listed.feed(&shape);
    fed.push(wave(&shape, 0.13));
    let zeros = listed.zeros(&[3, 1, 8]);
    let mut wanted = vec![all];
    for step in (0..steps).rev() {
        let of_step = listed.cut(&gradient, 1, step, 1);
        wanted.push(listed.scalar(NumericOperationIr::MulScalar, &of_step, 2.0));
        gradient = listed.assign(&gradient, &zeros, 1, step);
    }
    let program = compiled(&listed, &wanted);
    assert!(program.summary().interpreted.is_empty(), "{program}");
    let (expected, given) = both(&listed, &fed, &wanted);
    near(&expected, &given);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn slices_of_tensors_with_slices_assigned_are_those_of_the_interpreter(
        size in 1usize..9,
        assigned in prop::collection::vec((0usize..9, 1usize..5, any::<bool>()), 0..6),
        cut in (0usize..9, 1usize..5),
        kept in any::<bool>(),
        empty in any::<bool>(),
    ) {
        let within = |(start, length): (usize, usize)| (start % size, length.min(size - start % size));
        let mut listed = Listed::default();
        let mut fed = vec![wave(&[2, size, 3], 0.3)];
        let first = listed.feed(&[2, size, 3]);
        let mut tensor = if empty { listed.zeros(&[2, size, 3]) } else { first };
        let mut wanted = Vec::new();
        for (start, length, read) in assigned {
            let (start, length) = within((start, length));
            let value = listed.feed(&[2, length, 3]);
            fed.push(wave(&[2, length, 3], 0.7 + fed.len() as f32));
            tensor = listed.assign(&tensor, &value, 1, start);
            let (start, length) = within(cut);
            let part = listed.cut(&tensor, 1, start, length);
            if read {
                wanted.push(listed.scalar(NumericOperationIr::AddScalar, &part, 1.0));
            }
        }
        let (start, length) = within(cut);
        wanted.push(listed.cut(&tensor, 1, start, length));
        if kept {
            wanted.push(tensor);
        }
        let (expected, given) = both(&listed, &fed, &wanted);
        prop_assert_eq!(expected, given);
    }
}

#[test]
fn an_assignment_of_another_shape_is_left_to_the_interpreter() {
    // A value of one column where there are four, of one row where the range has two; a tensor of another shape than
    // the result.
    for (of, value) in [([4, 4], [2, 1]), ([4, 4], [1, 4]), ([6, 4], [2, 4])] {
        let mut listed = Listed::default();
        let value = listed.feed(&value);
        let zeros = listed.zeros(&of);
        let ranges = vec![Slice::new(0, Some(2), 1)];
        let placed = listed.make(&[4, 4], |out| {
            let op = SliceAssignOpIr { tensor: zeros.clone(), ranges, value: value.clone(), out };
            OperationIr::BaseFloat(BaseOperationIr::SliceAssign(op))
        });
        let summary = compiled(&listed, &[placed]).summary();
        assert_eq!(summary.interpreted.keys().collect::<Vec<_>>(), ["SliceAssign"], "{summary}");
    }
}

#[test]
fn the_largest_of_no_elements_is_left_to_the_interpreter() {
    for function in [NumericOperationIr::MaxDim, NumericOperationIr::MinDim] {
        let mut listed = Listed::default();
        let x = listed.feed(&[3, 0]);
        let largest = listed.reduce(function, &x, 1);
        assert_eq!(compiled(&listed, &[largest]).summary().interpreted.len(), 1);
    }
}
