//! Programs whose parts are known: what becomes of them.

use crate::listed::{Listed, binary, unary};
use crate::run::{both, compiled, near, tensor, wave};
use burn::backend::ir::NumericOperationIr;

#[test]
fn a_norm_and_a_softmax_are_one_region() {
    let mut listed = Listed::default();
    let x = listed.feed(&[3, 37, 130]);
    let normal = listed.normalized(&x);
    let soft = listed.softmax(&normal);
    let summary = compiled(&listed, &[soft.clone()]).summary();
    assert_eq!((summary.regions, summary.matmuls), (1, 0), "{summary}");
    let (expected, given) = both(&listed, &[wave(&[3, 37, 130], 0.37)], &[soft, normal]);
    near(&expected, &given);
}

#[test]
fn a_sum_over_samples_and_positions_is_one_sum() {
    let mut listed = Listed::default();
    let (x, y) = (listed.feed(&[4, 33, 65]), listed.feed(&[4, 33, 65]));
    let matmul = listed.binary(binary("mul"), &x, &y);
    let samples = listed.reduce(NumericOperationIr::SumDim, &matmul, 0);
    let all = listed.reduce(NumericOperationIr::SumDim, &samples, 1);
    let bias = listed.reshape(&all, &[65]);
    assert_eq!(compiled(&listed, &[bias.clone()]).summary().regions, 1);
    let (expected, given) = both(&listed, &[wave(&[4, 33, 65], 0.11), wave(&[4, 33, 65], 0.7)], &[bias]);
    near(&expected, &given);
}

#[test]
fn sums_along_any_dimensions_are_those_of_the_interpreter() {
    for axes in [&[0, 1][..], &[2], &[1, 2], &[0, 2], &[0, 1, 2], &[]] {
        let mut listed = Listed::default();
        let x = listed.feed(&[4, 33, 65]);
        let sum = listed.sum_dims(&x, axes);
        let (expected, given) = both(&listed, &[wave(&[4, 33, 65], 0.11)], &[sum.clone()]);
        near(&expected, &given);
        assert!(compiled(&listed, &[sum]).summary().interpreted.is_empty());
    }
}

#[test]
fn a_sum_of_one_value_a_row_counts_each_row_once_where_rows_are_longer_than_a_tile() {
    for columns in [2_048, 4_096, 4_097, 10_000] {
        let mut listed = Listed::default();
        let (gate, x) = (listed.feed(&[7, 1]), listed.feed(&[7, columns]));
        let gate = listed.unary(unary("sigmoid"), &gate);
        let gated = listed.binary(binary("mul"), &gate, &x);
        let (sum, all) = (listed.sum_dims(&gate, &[0]), listed.whole(NumericOperationIr::Sum, &gate));
        let of_columns = listed.sum_dims(&gated, &[0]);
        let fed = [wave(&[7, 1], 0.3), wave(&[7, columns], 0.7)];
        let (expected, given) = both(&listed, &fed, &[gated, sum, all, of_columns]);
        near(&expected, &given);
    }
}

#[test]
fn a_linear_layer_and_its_gradients_are_three_matmuls() {
    let mut listed = Listed::default();
    let (x, weight, gradient) = (listed.feed(&[3, 7, 10]), listed.feed(&[1, 10, 12]), listed.feed(&[3, 7, 12]));
    let y = listed.matmul(&x, &weight);
    let turned = listed.swap(&weight, 1, 2);
    let of_input = listed.matmul(&gradient, &turned);
    let turned = listed.swap(&x, 1, 2);
    let each = listed.matmul(&turned, &gradient);
    let of_weight = listed.reduce(NumericOperationIr::SumDim, &each, 0);
    let program = compiled(&listed, &[y.clone(), of_input.clone(), of_weight.clone()]);
    let summary = program.summary();
    assert_eq!((summary.regions, summary.matmuls), (0, 3), "{program}");
    let fed = [wave(&[3, 7, 10], 0.3), wave(&[1, 10, 12], 0.7), wave(&[3, 7, 12], 0.2)];
    let (expected, given) = both(&listed, &fed, &[y, of_input, of_weight]);
    near(&expected, &given);
}

#[test]
fn ones_that_repeat_a_gradient_cost_nothing() {
    let mut listed = Listed::default();
    let (gradient, x) = (listed.feed(&[5, 1]), listed.feed(&[5, 70]));
    let ones = listed.ones(&[5, 70]);
    let ones = listed.scalar(NumericOperationIr::MulScalar, &ones, 1.0 / 70.0);
    let repeated = listed.binary(binary("mul"), &ones, &gradient);
    let sum = listed.binary(binary("add"), &repeated, &x);
    let summary = compiled(&listed, &[sum.clone()]).summary();
    assert_eq!((summary.regions, summary.fused), (1, 2), "{summary}");
    let (expected, given) = both(&listed, &[wave(&[5, 1], 0.3), wave(&[5, 70], 0.2)], &[sum]);
    near(&expected, &given);
}

#[test]
fn what_is_computed_twice_is_computed_once() {
    let mut listed = Listed::default();
    let x = listed.feed(&[6, 6]);
    let (one, other) = (listed.unary(unary("exp"), &x), listed.unary(unary("exp"), &x));
    let sum = listed.binary(binary("add"), &one, &other);
    assert_eq!(compiled(&listed, &[sum.clone()]).summary().fused, 2);
    let (expected, given) = both(&listed, &[wave(&[6, 6], 0.3)], &[sum, other]);
    near(&expected, &given);
}

#[test]
fn operations_of_extensions_stay_in_order_whether_or_not_anything_reads_them() {
    let mut listed = Listed::default();
    let x = listed.feed(&[4, 3]);
    let doubled = listed.scalar(NumericOperationIr::MulScalar, &x, 2.0);
    listed.custom("unread", &doubled);
    let read = listed.custom("read", &x);
    let halved = listed.scalar(NumericOperationIr::MulScalar, &read, 0.5);
    listed.unary(unary("exp"), &halved);
    listed.custom("last", &x);
    let program = compiled(&listed, &[halved]);
    let text = program.to_string();
    let places: Vec<usize> = ["unread(", "read(", "last("]
        .map(|name| text.find(&format!("interpreted {name}")).unwrap_or_else(|| panic!("{name}: {text}")))
        .to_vec();
    assert!(places.is_sorted(), "{text}");
    assert!(!text.contains("Exp"), "{text}");
}

#[test]
fn masks_are_read_and_given() {
    let mut listed = Listed::default();
    let (x, y) = (listed.feed(&[4, 9, 20]), listed.feed(&[1, 9, 20]));
    let mask = listed.greater_than(&y, 0.3);
    let filled = listed.mask_fill(&x, &mask, -7.0);
    let own = listed.greater_than(&filled, -1.0);
    let chosen = listed.mask_where(&x, &own, &filled);
    let fed = [wave(&[4, 9, 20], 0.3), wave(&[1, 9, 20], 0.9)];
    let (expected, given) = both(&listed, &fed, &[mask, own, chosen]);
    assert_eq!(expected, given);
}

#[test]
fn heads_are_cut_out_of_a_product_without_a_copy() {
    let mut listed = Listed::default();
    let x = listed.feed(&[2, 7, 24]);
    let part = listed.slice(&x, 2, 8);
    let heads = listed.reshape(&part, &[2, 7, 4, 4]);
    let heads = listed.swap(&heads, 1, 2);
    let turned = listed.swap(&heads, 2, 3);
    let scores = listed.matmul(&heads, &turned);
    let scores = listed.softmax(&scores);
    let mixed = listed.matmul(&scores, &heads);
    let mixed = listed.swap(&mixed, 1, 2);
    let joined = listed.reshape(&mixed, &[2, 7, 16]);
    let summary = compiled(&listed, &[joined.clone()]).summary();
    assert_eq!((summary.regions, summary.matmuls), (1, 2), "{summary}");
    let (expected, given) = both(&listed, &[wave(&[2, 7, 24], 0.3)], &[joined]);
    near(&expected, &given);
}

#[test]
fn sums_do_not_depend_on_the_number_of_threads() {
    let mut listed = Listed::default();
    let x = listed.feed(&[3_000, 300]);
    let soft = listed.softmax(&x);
    let columns = listed.reduce(NumericOperationIr::SumDim, &soft, 0);
    let all = listed.whole(NumericOperationIr::Mean, &x);
    // Above zero, so that the mean's rounding is small beside it.
    let fed = [tensor((0..900_000).map(|at| (at as f32 * 0.01).sin() * 3.0 + 4.0).collect(), &[3_000, 300])];
    let given = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| both(&listed, &fed, &[columns.clone(), all.clone()]))
    };
    let ((expected, one), (_, four)) = (given(1), given(4));
    assert_eq!(one, four);
    near(&expected, &one);
}

#[test]
fn scores_are_never_written_whole_and_do_not_depend_on_the_number_of_threads() {
    let mut listed = Listed::default();
    let (queries, keys) = (listed.feed(&[2, 3, 130, 10]), listed.feed(&[2, 3, 10, 140]));
    let scores = listed.matmul(&queries, &keys);
    let soft = listed.softmax(&scores);
    let program = compiled(&listed, &[soft.clone()]);
    assert_eq!(program.len(), 1, "{program}");
    let fed = [wave(&[2, 3, 130, 10], 0.3), wave(&[2, 3, 10, 140], 0.7)];
    let given = |threads: usize, wanted: &[burn::backend::ir::TensorIr]| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| both(&listed, &fed, wanted))
    };
    let ((expected, one), (_, three)) = (given(1, &[soft.clone()]), given(3, &[soft.clone()]));
    assert_eq!(one, three);
    near(&expected, &one);
    // Where the scores are kept too, they are one matmul, and the softmax gives the same bits.
    let (_, whole) = given(1, &[soft, scores]);
    assert_eq!(whole[0], one[0]);
}
