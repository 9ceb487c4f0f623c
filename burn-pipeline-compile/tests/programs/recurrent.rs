//! Matmuls of a recurrent layer's steps.

use crate::listed::{Listed, binary, unary};
use crate::run::{both, compiled, near, wave};
use burn::backend::flex::FlexTensor;
use burn::backend::ir::TensorIr;

/// The gradient of a weight that so many steps use, each of so many rows; what is fed, and the gradient.
fn of_steps(listed: &mut Listed, steps: usize, rows: usize) -> (Vec<FlexTensor>, TensorIr) {
    let (mut fed, mut sum) = (Vec::new(), None::<TensorIr>);
    for step in 0..steps {
        let (x, gradient) = (listed.feed(&[rows, 40]), listed.feed(&[rows, 24]));
        fed.extend([wave(&[rows, 40], 0.3 + step as f32), wave(&[rows, 24], 0.7 + step as f32)]);
        let turned = listed.swap(&x, 0, 1);
        let matmul = listed.matmul(&turned, &gradient);
        sum = Some(match sum {
            None => matmul,
            // In any order.
            Some(sum) if step % 2 == 0 => listed.binary(binary("add"), &sum, &matmul),
            Some(sum) => listed.binary(binary("add"), &matmul, &sum),
        });
    }
    (fed, sum.unwrap())
}

#[test]
fn matmuls_of_few_rows_that_are_added_are_one_matmul() {
    let mut listed = Listed::default();
    let (fed, sum) = of_steps(&mut listed, 7, 5);
    let program = compiled(&listed, &[sum.clone()]);
    assert_eq!((program.summary().matmuls, program.summary().regions), (1, 0), "{program}");
    let (expected, given) = both(&listed, &fed, &[sum]);
    near(&expected, &given);
}

#[test]
fn matmuls_of_many_rows_stay_as_they_are() {
    let mut listed = Listed::default();
    let (fed, sum) = of_steps(&mut listed, 3, 30);
    assert_eq!(compiled(&listed, &[sum.clone()]).summary().matmuls, 3);
    let (expected, given) = both(&listed, &fed, &[sum]);
    near(&expected, &given);
}

#[test]
fn what_is_read_or_kept_beside_a_sum_of_products_is_still_given() {
    let mut listed = Listed::default();
    let (mut fed, sum) = of_steps(&mut listed, 4, 5);
    let (x, y) = (listed.feed(&[40, 3]), listed.feed(&[3, 24]));
    let other = listed.feed(&[40, 24]);
    fed.extend([wave(&[40, 3], 0.2), wave(&[3, 24], 0.9), wave(&[40, 24], 0.4)]);
    // Not turned; and a matmul that is also read elsewhere.
    let matmul = listed.matmul(&x, &y);
    let shared = listed.matmul(&x, &y);
    let bounded = listed.unary(unary("tanh"), &shared);
    let mut all = sum;
    for term in [&matmul, &other, &shared] {
        all = listed.binary(binary("add"), &all, term);
    }
    let wanted = [all, bounded];
    let program = compiled(&listed, &wanted);
    // The shared one computes what the other matmul does, so both are read elsewhere.
    assert_eq!(program.summary().matmuls, 2, "{program}");
    let (expected, given) = both(&listed, &fed, &wanted);
    near(&expected, &given);
}

#[test]
fn gates_of_a_recurrent_layer_share_what_is_joined() {
    let mut listed = Listed::default();
    let steps: Vec<TensorIr> = (0..5).map(|_| listed.feed(&[4, 32])).collect();
    let gates: Vec<Vec<TensorIr>> = (0..2).map(|_| (0..5).map(|_| listed.feed(&[4, 16])).collect()).collect();
    let mut wanted = Vec::new();
    for (place, gate) in gates.iter().enumerate() {
        let mut matmuls = Vec::new();
        for (x, gradient) in steps.iter().zip(gate) {
            let turned = listed.swap(x, 0, 1);
            matmuls.push(listed.matmul(&turned, gradient));
        }
        // In another order for each gate.
        matmuls.rotate_left(place);
        let add = |sum: TensorIr, matmul: &TensorIr| listed.binary(binary("add"), &sum, matmul);
        wanted.push(matmuls[1..].iter().fold(matmuls[0].clone(), add));
    }
    let program = compiled(&listed, &wanted);
    assert_eq!(program.summary().matmuls, 2);
    assert_eq!(program.to_string().matches("Place[").count(), 3, "{program}");
    let fed: Vec<FlexTensor> = listed.fed.iter().map(|fed| wave(&fed.shape, 0.1 + fed.id.value() as f32)).collect();
    let (expected, given) = both(&listed, &fed, &wanted);
    near(&expected, &given);
}

#[test]
fn an_exchange_between_products_that_are_added_changes_no_bit() {
    let given = |between: bool| {
        let mut listed = Listed::default();
        let (x, y, z) = (listed.feed(&[3, 20]), listed.feed(&[3, 30]), listed.feed(&[20, 30]));
        let early = (!between).then(|| listed.custom("wait", &z));
        let turned = listed.swap(&x, 0, 1);
        let first = listed.matmul(&turned, &y);
        let received = early.unwrap_or_else(|| listed.custom("wait", &z));
        let bounded = listed.unary(unary("tanh"), &y);
        let second = listed.matmul(&turned, &bounded);
        let both_matmuls = listed.binary(binary("add"), &first, &second);
        let sum = listed.binary(binary("add"), &both_matmuls, &received);
        assert_eq!(compiled(&listed, &[sum.clone()]).summary().matmuls, 1);
        let fed = [wave(&[3, 20], 0.3), wave(&[3, 30], 0.7), wave(&[20, 30], 0.2)];
        let (expected, given) = both(&listed, &fed, &[sum]);
        near(&expected, &given);
        given
    };
    assert_eq!(given(false), given(true));
}
