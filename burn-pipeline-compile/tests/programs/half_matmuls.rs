//! Matmuls in half precision: exact sums, rounded once, the same for any number of threads.

use crate::halves::{TYPES, bits, cast, half_unit, in_half, in_type};
use crate::listed::Listed;
use crate::random::noise;
use crate::run::{both, values};
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::ir::TensorIr;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::DType;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn a_matmul_is_its_exact_sums_rounded_once(
        [rows, columns, depth] in [1..70_usize, 1..70_usize, 1..70_usize],
        turned in any::<[bool; 3]>(),
        batch in 1..4_usize,
        alone in any::<bool>(),
        which in 0..2_usize,
    ) {
        matmul_is_exact([batch, rows, columns, depth], turned, alone, TYPES[which]);
    }
}

/// Compares a matmul with sums in `f64` of the operands' values; `turned` operands and results lie transposed.
fn matmul_is_exact([batch, rows, columns, depth]: [usize; 4], turned: [bool; 3], alone: bool, dtype: DType) {
    let mut listed = Listed::default();
    let shape = |turned: bool, batch: usize, [rows, columns]: [usize; 2]| match turned {
        true => [batch, columns, rows],
        false => [batch, rows, columns],
    };
    let others = if alone { 1 } else { batch };
    let shapes = [shape(turned[0], batch, [rows, depth]), shape(turned[1], others, [depth, columns])];
    let fed: Vec<TensorIr> = shapes.iter().map(|shape| listed.feed(shape)).collect();
    let given: Vec<FlexTensor> =
        shapes.iter().enumerate().map(|(seed, shape)| cast(&noise(shape, seed + 3), dtype)).collect();
    let [lhs, rhs] = [0, 1].map(|at| if turned[at] { listed.swap(&fed[at], 1, 2) } else { fed[at].clone() });
    let product = listed.matmul(&lhs, &rhs);
    let wanted = if turned[2] { listed.swap(&product, 1, 2) } else { product };
    let half = in_half(&listed, dtype, |_| false);
    let (_, got) = both(&half, &given, &in_type(&[wanted], dtype));
    let [left, right] = [0, 1].map(|at| values(given[at].clone()));
    let (relative, smallest) = half_unit(dtype);
    for (at, got) in got[0].iter().enumerate() {
        let (place, inner) = (at / (rows * columns), at % (rows * columns));
        let (row, column) = if turned[2] { (inner % rows, inner / rows) } else { (inner / columns, inner % columns) };
        let from = |turned: bool, batch: usize, [rows, columns]: [usize; 2], row: usize, column: usize| match turned {
            true => batch * rows * columns + column * rows + row,
            false => batch * rows * columns + row * columns + column,
        };
        let (mut sum, mut size) = (0.0, 0.0);
        for k in 0..depth {
            let x = left[from(turned[0], place, [rows, depth], row, k)];
            let y = right[from(turned[1], if alone { 0 } else { place }, [depth, columns], k, column)];
            sum += f64::from(x) * f64::from(y);
            size += (f64::from(x) * f64::from(y)).abs();
        }
        let most = relative * sum.abs() * 1.01 + smallest + 1e-6 * size;
        assert!((f64::from(*got) - sum).abs() <= most, "{got} instead of {sum} at {row}, {column}: {dtype:?}");
    }
}

#[test]
fn blocks_of_a_matmul_meet_where_they_should() {
    for dtype in TYPES {
        matmul_is_exact([1, 530, 33, 1030], [false, false, false], false, dtype);
        matmul_is_exact([1, 34, 1040, 520], [true, true, true], false, dtype);
    }
}

/// What a program gives on this many threads.
fn on_threads(threads: usize, half: &Listed, given: &[FlexTensor], wanted: &[TensorIr]) -> Vec<Vec<f32>> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| both(half, given, wanted).1)
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    for dtype in TYPES {
        let mut listed = Listed::default();
        let (x, w) = (listed.feed(&[700, 300]), listed.feed(&[300, 90]));
        let product = listed.matmul(&x, &w);
        let sum = listed.sum_dims(&product, &[0]);
        let half = in_half(&listed, dtype, |_| false);
        let given = [noise(&[700, 300], 1), noise(&[300, 90], 2)].map(|value| cast(&value, dtype));
        let wanted = in_type(&[product, sum], dtype);
        let [one, three] = [1, 3].map(|threads| on_threads(threads, &half, &given, &wanted));
        assert!(one.iter().zip(&three).all(|(one, three)| bits(one) == bits(three)), "{dtype:?}");
    }
}

/// The crate `gemm` adds in another order where a matmul is very small.
#[test]
fn bits_of_a_matmul_with_few_columns_do_not_depend_on_the_number_of_threads() {
    for (dtype, (rows, columns)) in
        TYPES.into_iter().flat_map(|dtype| [(256, 8), (300, 1), (1025, 16)].map(|s| (dtype, s)))
    {
        let mut listed = Listed::default();
        // As the gradient of a linear layer's input: the second operand is transposed.
        let (x, w) = (listed.feed(&[rows, 4096]), listed.feed(&[columns, 4096]));
        let turned = listed.swap(&w, 0, 1);
        let product = listed.matmul(&x, &turned);
        let half = in_half(&listed, dtype, |_| false);
        let given = [noise(&[rows, 4096], 1), noise(&[columns, 4096], 2)].map(|value| cast(&value, dtype));
        let wanted = in_type(&[product], dtype);
        let run = |threads: usize| bits(&on_threads(threads, &half, &given, &wanted)[0]);
        let one = run(1);
        for threads in [2, 8, 31] {
            assert_eq!(run(threads), one, "{dtype:?}, {rows} rows, {columns} columns, {threads} threads");
        }
    }
}

#[test]
fn a_matmul_is_rounded_once_also_where_the_interpreter_rounds_each_product() {
    for dtype in TYPES {
        for (rows, depth) in [(20, 1), (20, 2), (20, 3), (1, 3)] {
            let mut listed = Listed::default();
            let (x, y) = (listed.feed(&[rows, depth]), listed.feed(&[depth, 30]));
            let product = listed.matmul(&x, &y);
            let fed = [noise(&[rows, depth], 1), noise(&[depth, 30], 2)].map(|fed| cast(&fed, dtype));
            let half = in_half(&listed, dtype, |_| false);
            let (interpreted, given) = both(&half, &fed, &in_type(&[product], dtype));
            let [x, y] = fed.map(|fed| cast(&fed, DType::F32));
            let once = values(cast(&Flex::float_matmul(x, y), dtype));
            assert_eq!(given[0], once, "{dtype:?}, {rows} rows of {depth} products");
            // So does the crate `gemm` in f16, with two products or one row.
            let each = dtype == DType::F16 && (depth == 2 || rows == 1);
            assert_eq!(interpreted[0] != once, each, "{dtype:?}, {rows} rows of {depth} products");
        }
    }
}
