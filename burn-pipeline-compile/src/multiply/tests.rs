//! Compares matmuls with sums in `f64` of operands, which the crate `half` rounds if the matmuls round them.

use super::{Avx512, Bf16, By, Elements, Matrix, multiply};
use crate::half::Half;
use burn::tensor::bf16;
use proptest::prelude::*;

/// The memory layout of a matrix.
#[derive(Clone, Copy, Debug)]
enum Lies {
    Rows,
    Columns,
    /// Rows, with gaps between elements.
    Apart,
}

#[derive(Clone, Debug)]
struct Sample {
    rows: usize,
    columns: usize,
    /// In order, row by row.
    values: Vec<f32>,
    lies: Lies,
    rounded: bool,
}

/// A matrix in memory, with its strides.
struct Laid {
    floats: Vec<f32>,
    rounded: Vec<u16>,
    row: isize,
    column: isize,
}

impl Sample {
    fn laid(&self) -> Laid {
        let (row, column) = match self.lies {
            Lies::Rows => (self.columns, 1),
            Lies::Columns => (1, self.rows),
            Lies::Apart => (3 * self.columns + 1, 3),
        };
        let mut floats = vec![f32::NAN; 1 + self.rows * self.columns * 4 + self.rows];
        for at in 0..self.values.len() {
            floats[at / self.columns * row + at % self.columns * column] = self.values[at];
        }
        let rounded = floats.iter().map(|&value| bf16::from_f32(value).to_bits()).collect();
        Laid { floats, rounded, row: row as isize, column: column as isize }
    }
}

impl Laid {
    fn matrix(&self, rounded: bool) -> Matrix<Elements> {
        let at = match rounded {
            true => Elements::Half(self.rounded.as_ptr(), Half::Bf16),
            false => Elements::F32(self.floats.as_ptr()),
        };
        Matrix { at, row: self.row, column: self.column }
    }
}

/// A matmul as contiguous elements; written to elements with the target's layout, or added to them.
fn matmul(by: By, [lhs, rhs]: [&Sample; 2], to: &Sample, add: bool, parallel: bool) -> Vec<f32> {
    let mut target = to.laid();
    let (left, right) = (lhs.laid(), rhs.laid());
    let sizes = [lhs.rows, rhs.columns, lhs.columns];
    let at = Matrix { at: target.floats.as_mut_ptr(), row: target.row, column: target.column };
    // SAFETY: the matrices have these sizes, and nothing else refers to the target.
    unsafe { multiply(by, sizes, at, left.matrix(lhs.rounded), right.matrix(rhs.rounded), add, parallel) };
    let place = |at: usize| at / to.columns * target.row as usize + at % to.columns * target.column as usize;
    let given = (0..to.values.len()).map(|at| target.floats[place(at)]).collect();
    (0..to.values.len()).for_each(|at| target.floats[place(at)] = f32::NAN);
    assert!(target.floats.iter().all(|value| value.is_nan()), "something else than the matmul was written");
    given
}

fn values(count: usize, seed: usize) -> Vec<f32> {
    let value = |at: usize| (((at * 2_654_435_761 + seed * 40_503) % 65_521) as f32 / 32_760.5) - 1.0;
    (0..count).map(value).collect()
}

fn sample(rows: usize, columns: usize, (lies, rounded, seed): (Lies, bool, usize)) -> Sample {
    Sample { rows, columns, values: values(rows * columns, seed), lies, rounded }
}

/// The kinds that this processor supports; none on a processor without vectors of 512 bits.
fn all() -> impl Iterator<Item = By> {
    [Avx512::detect().map(By::Numbers), Bf16::detect().map(By::Pairs)].into_iter().flatten()
}

/// The operand as these matmuls may receive it, and the values that they multiply.
fn given(by: By, sample: &Sample) -> (Sample, Vec<f64>) {
    match by {
        By::Numbers(_) => {
            (Sample { rounded: false, ..sample.clone() }, sample.values.iter().map(|&v| v.into()).collect())
        }
        By::Pairs(_) => (sample.clone(), sample.values.iter().map(|&v| bf16::from_f32(v).to_f64()).collect()),
    }
}

fn how() -> impl Strategy<Value = (Lies, bool, usize)> {
    (prop_oneof![Just(Lies::Rows), Just(Lies::Columns), Just(Lies::Apart)], any::<bool>(), 0..100_usize)
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![3 => 1..50_usize, 1 => Just(16), 1 => Just(32), 1 => Just(64)]
}

fn depth() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(0), 5 => 1..70_usize, 1 => Just(512), 1 => 513..1100_usize]
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Each of `n` additions rounds by at most 2⁻²⁴ of a partial sum, which is at most the sum of magnitudes.
    #[test]
    fn matmuls_are_sums_of_products_of_elements(
        [rows, columns] in [size(), size()],
        depth in depth(),
        [lhs, rhs, to] in [how(), how(), how()],
        add in any::<bool>(),
    ) {
        let (lhs, rhs, to) = (sample(rows, depth, lhs), sample(depth, columns, rhs), sample(rows, columns, to));
        for by in all() {
            let ((lhs, left), (rhs, right)) = (given(by, &lhs), given(by, &rhs));
            for (at, given) in matmul(by, [&lhs, &rhs], &to, add, false).iter().enumerate() {
                let (row, column) = (at / columns, at % columns);
                let terms = (0..depth).map(|k| left[row * depth + k] * right[k * columns + column]);
                let before = if add { f64::from(to.values[at]) } else { 0.0 };
                let (sum, size) =
                    terms.fold((before, before.abs()), |(sum, size), term| (sum + term, size + term.abs()));
                let bound = (depth + 3) as f64 * 2.0_f64.powi(-24) * size;
                let off = (f64::from(*given) - sum).abs();
                prop_assert!(
                    off <= bound,
                    "{by:?}: {given} instead of {sum} at {at}, off by {off:e}, allowed {bound:e}"
                );
            }
        }
    }

    #[test]
    fn bits_depend_on_values_and_sizes_alone(
        [rows, columns] in [size(), size()], depth in depth(), [lhs, rhs, to] in [how(), how(), how()],
    ) {
        let (lhs, rhs, to) = (sample(rows, depth, lhs), sample(depth, columns, rhs), sample(rows, columns, to));
        let plain = |sample: &Sample| Sample { lies: Lies::Rows, rounded: false, ..sample.clone() };
        for by in all() {
            let ((lhs, _), (rhs, _)) = (given(by, &lhs), given(by, &rhs));
            let expected = matmul(by, [&plain(&lhs), &plain(&rhs)], &plain(&to), false, false);
            prop_assert_eq!(bits(&matmul(by, [&lhs, &rhs], &to, false, false)), bits(&expected), "{:?}", by);
            let threads = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
            let given = threads.install(|| matmul(by, [&lhs, &rhs], &to, false, true));
            prop_assert_eq!(bits(&given), bits(&expected), "{:?} on three threads", by);
        }
    }

    #[test]
    fn a_product_that_is_added_gives_the_bits_of_both_steps(
        [rows, columns] in [size(), size()], depth in 1..513_usize, [lhs, rhs, to] in [how(), how(), how()],
    ) {
        let (lhs, rhs, to) = (sample(rows, depth, lhs), sample(depth, columns, rhs), sample(rows, columns, to));
        for by in all() {
            let ((lhs, _), (rhs, _)) = (given(by, &lhs), given(by, &rhs));
            let written = matmul(by, [&lhs, &rhs], &to, false, false);
            let sums: Vec<f32> = to.values.iter().zip(written).map(|(sum, matmul)| sum + matmul).collect();
            prop_assert_eq!(bits(&matmul(by, [&lhs, &rhs], &to, true, false)), bits(&sums), "{:?}", by);
        }
    }

    /// Both sum in the order of the depth, so either may compute such a matmul.
    #[test]
    fn up_to_512_products_bits_are_those_of_the_crate_gemm(
        [rows, columns] in [2..90_usize, 16..90_usize], depth in 3..513_usize, [lhs, rhs] in [how(), how()],
    ) {
        prop_assume!(rows * columns > 256);
        let Some(found) = Avx512::detect().map(By::Numbers) else { return Ok(()) };
        let (lhs, rhs) = (sample(rows, depth, lhs), sample(depth, columns, rhs));
        let ((lhs, _), (rhs, _)) = (given(found, &lhs), given(found, &rhs));
        let to = sample(rows, columns, (Lies::Rows, false, 1));
        let (left, right, mut other) = (lhs.laid(), rhs.laid(), vec![0.0_f32; rows * columns]);
        // SAFETY: the matrices have these sizes, and nothing else refers to the target.
        unsafe {
            gemm::gemm(
                rows, columns, depth, other.as_mut_ptr(), 1, columns as isize, false, left.floats.as_ptr(), left.column,
                left.row, right.floats.as_ptr(), right.column, right.row, 0.0_f32, 1.0_f32, false, false, false,
                gemm::Parallelism::None,
            );
        }
        prop_assert_eq!(bits(&matmul(found, [&lhs, &rhs], &to, false, false)), bits(&other));
    }
}

#[test]
fn blocks_of_rows_and_columns_meet_where_they_should() {
    // More than one block of rows, columns and depth; rows map to the same cache sets, or not.
    for (by, depth) in all().flat_map(|by| [(by, 600), (by, 1024)]) {
        let how = |seed| (Lies::Rows, false, seed);
        let (lhs, rhs) = (sample(300, depth, how(1)), sample(depth, 1100, how(2)));
        let to = sample(300, 1100, how(3));
        let given = matmul(by, [&lhs, &rhs], &to, false, false);
        for (row, column) in [(0, 0), (239, 511), (240, 512), (299, 1099), (252, 31), (251, 32)] {
            let part =
                |sample: &Sample, values: Vec<f32>, rows, columns| Sample { values, rows, columns, ..sample.clone() };
            let left = part(&lhs, lhs.values[row * depth..(row + 1) * depth].to_vec(), 1, depth);
            let right = part(&rhs, (0..depth).map(|k| rhs.values[k * 1100 + column]).collect(), depth, 1);
            let one = matmul(by, [&left, &right], &part(&to, vec![0.0], 1, 1), false, false);
            assert_eq!(given[row * 1100 + column].to_bits(), one[0].to_bits(), "{by:?}, row {row}, column {column}");
        }
    }
}
