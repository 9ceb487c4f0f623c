//! Compares matmuls with sums in `f64` of operands, which the crate `half` rounds if the matmuls round them.

mod parts;

use super::amx::Amx;
use super::{Avx512, Bf16, By, DEPTH, Elements, Matrix, Parts, To, Way, multiply};
use crate::half::Half;
use burn::tensor::{bf16, f16};
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
    let at = Matrix { at: To::F32(target.floats.as_mut_ptr()), row: target.row, column: target.column };
    // SAFETY: the matrices have these sizes, and nothing else refers to the target.
    unsafe { multiply(by, sizes, at, left.matrix(lhs.rounded), right.matrix(rhs.rounded), add, parallel) };
    let place = |at: usize| at / to.columns * target.row as usize + at % to.columns * target.column as usize;
    let given = (0..to.values.len()).map(|at| target.floats[place(at)]).collect();
    (0..to.values.len()).for_each(|at| target.floats[place(at)] = f32::NAN);
    assert!(target.floats.iter().all(|value| value.is_nan()), "something else than the matmul was written");
    given
}

/// The bits of a matmul, written as half precision to elements with the target's layout.
fn half_matmul(by: By, half: Half, [lhs, rhs]: [&Sample; 2], to: &Sample) -> Vec<u16> {
    const UNWRITTEN: u16 = 0x7fff;
    let (left, right, target) = (lhs.laid(), rhs.laid(), to.laid());
    let mut halves = vec![UNWRITTEN; target.floats.len()];
    let at = Matrix { at: To::Half(halves.as_mut_ptr(), half), row: target.row, column: target.column };
    let sizes = [lhs.rows, rhs.columns, lhs.columns];
    // SAFETY: the matrices have these sizes, and nothing else refers to the target.
    unsafe { multiply(by, sizes, at, left.matrix(lhs.rounded), right.matrix(rhs.rounded), false, false) };
    let place = |at: usize| at / to.columns * target.row as usize + at % to.columns * target.column as usize;
    let given = (0..to.values.len()).map(|at| std::mem::replace(&mut halves[place(at)], UNWRITTEN)).collect();
    assert!(halves.iter().all(|&bits| bits == UNWRITTEN), "something else than the matmul was written");
    given
}

fn values(count: usize, seed: usize) -> Vec<f32> {
    let value = |at: usize| (((at * 2_654_435_761 + seed * 40_503) % 65_521) as f32 / 32_760.5) - 1.0;
    (0..count).map(value).collect()
}

fn sample(rows: usize, columns: usize, (lies, rounded, seed): (Lies, bool, usize)) -> Sample {
    Sample { rows, columns, values: values(rows * columns, seed), lies, rounded }
}

/// The ways to multiply rounded operands whose sums are those of pairs: one by one and, if this processor has the
/// instruction, in pairs.
fn pairs() -> impl Iterator<Item = By> {
    ways(|way| matches!(way, Way::OneByOne | Way::Pairs), Parts::One)
}

/// The ways whose sums are those of matrix tiles: a model and, if this processor has them, tiles.
fn tiles() -> impl Iterator<Item = By> {
    on_tiles(Parts::One)
}

/// The model of tiles and, if this processor has them, tiles.
fn on_tiles(parts: Parts) -> impl Iterator<Item = By> {
    ways(|way| !matches!(way, Way::OneByOne | Way::Pairs), parts)
}

fn ways(wanted: fn(Way) -> bool, parts: Parts) -> impl Iterator<Item = By> {
    let pairs = is_x86_feature_detected!("avx512bf16");
    let tiles = Amx::detect().map(|tiles| Way::Tiles(tiles, parts));
    let all = [Some(Way::OneByOne), Some(Way::Pairs), Some(Way::ModelOfTiles(parts)), tiles];
    let found = Avx512::detect().into_iter().flat_map(move |found| {
        let known = all.into_iter().flatten().filter(move |way| pairs || *way == Way::OneByOne);
        known.map(move |way| Bf16 { found, way })
    });
    found.filter(move |rounded| wanted(rounded.way)).map(By::Rounded)
}

fn is_split(by: By) -> bool {
    matches!(by, By::Rounded(rounded) if !rounded.rounds())
}

fn is_in_two_parts(by: By) -> bool {
    matches!(by, By::Rounded(Bf16 { way: Way::ModelOfTiles(Parts::Two) | Way::Tiles(_, Parts::Two), .. }))
}

/// The kinds that this processor supports; none on a processor without vectors of 512 bits.
fn all() -> impl Iterator<Item = By> {
    let split = on_tiles(Parts::Two).chain(on_tiles(Parts::Three));
    Avx512::detect().map(By::Numbers).into_iter().chain(ways(|_| true, Parts::One)).chain(split)
}

/// The operand as these matmuls may receive it, and the values that they multiply.
fn given(by: By, sample: &Sample) -> (Sample, Vec<f64>) {
    match by {
        By::Rounded(rounded) if rounded.rounds() => {
            (sample.clone(), sample.values.iter().map(|&v| bf16::from_f32(v).to_f64()).collect())
        }
        _ => (Sample { rounded: false, ..sample.clone() }, sample.values.iter().map(|&v| v.into()).collect()),
    }
}

fn how() -> impl Strategy<Value = (Lies, bool, usize)> {
    (prop_oneof![Just(Lies::Rows), Just(Lies::Columns), Just(Lies::Apart)], any::<bool>(), 0..100_usize)
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![3 => 1..50_usize, 1 => Just(16), 1 => Just(32), 1 => Just(64)]
}

fn depth() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(0), 1 => Just(32), 5 => 1..70_usize, 1 => Just(512), 1 => 513..1100_usize]
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Each of `n` additions rounds by at most 2⁻²⁴ of a partial sum, which is at most the sum of magnitudes. Two parts
    /// leave 2⁻¹⁶ of each element and of the product of both second parts, and three leave out products of 2⁻²⁴.
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
                let parts = if is_in_two_parts(by) { 3.0 * 2.0_f64.powi(-16) } else { 0.0 };
                let bound = ((depth + 5) as f64 * 2.0_f64.powi(-24) + parts) * size;
                let off = (f64::from(*given) - sum).abs();
                prop_assert!(
                    off <= bound,
                    "{by:?}: {given} instead of {sum} at {at}, off by {off:e}, allowed {bound:e}"
                );
            }
        }
    }

    /// The definition of the instruction for pairs: the second product of each pair is added first, with one rounding
    /// each, in blocks of 512. Values have exponents around which nothing is subnormal.
    #[test]
    fn rounded_matmuls_have_the_bits_of_pairs_on_every_processor(
        [rows, columns] in [size(), size()], depth in depth(), [lhs, rhs, to] in [how(), how(), how()],
    ) {
        let (lhs, rhs, to) = (sample(rows, depth, lhs), sample(depth, columns, rhs), sample(rows, columns, to));
        let near = |value: f32| bf16::from_f32(value).to_f32();
        let product = |sum: f32, row: usize, k: usize, column: usize| match k < depth {
            true => near(lhs.values[row * depth + k]).mul_add(near(rhs.values[k * columns + column]), sum),
            false => sum,
        };
        let block = |row: usize, column: usize, start: usize| {
            let pairs = (start..depth.min(start + 512)).step_by(2);
            pairs.fold(0.0_f32, |sum, k| product(product(sum, row, k + 1, column), row, k, column))
        };
        let element = |at: usize| {
            let blocks = (0..depth).step_by(512).map(|start| block(at / columns, at % columns, start));
            blocks.reduce(|sum, block| sum + block).unwrap_or(0.0)
        };
        let expected: Vec<f32> = (0..rows * columns).map(element).collect();
        for by in pairs() {
            prop_assert_eq!(bits(&matmul(by, [&lhs, &rhs], &to, false, false)), bits(&expected), "{:?}", by);
        }
    }

    /// The definition of the instruction for tiles: of each 32 elements, those with even and those with odd places are
    /// summed apart, and both sums are added to the sum so far, in blocks of 512.
    #[test]
    fn matmuls_on_tiles_add_sums_of_even_and_odd_elements(
        [rows, columns] in [size(), size()], depth in depth(), [lhs, rhs, to] in [how(), how(), how()],
    ) {
        let (lhs, rhs, to) = (sample(rows, depth, lhs), sample(depth, columns, rhs), sample(rows, columns, to));
        let near = |value: f32| bf16::from_f32(value).to_f32();
        let chain = |row: usize, column: usize, places: std::iter::StepBy<std::ops::Range<usize>>| {
            let product = |sum: f32, k: usize| {
                near(lhs.values[row * depth + k]).mul_add(near(rhs.values[k * columns + column]), sum)
            };
            places.fold(0.0_f32, product)
        };
        let block = |row: usize, column: usize, start: usize| {
            let end = depth.min(start + 512);
            (start..end).step_by(32).fold(0.0_f32, |sum, first| {
                let last = end.min(first + 32);
                let [even, odd] = [first, first + 1].map(|first| chain(row, column, (first..last).step_by(2)));
                sum + (even + odd)
            })
        };
        let element = |at: usize| {
            let blocks = (0..depth).step_by(512).map(|start| block(at / columns, at % columns, start));
            blocks.reduce(|sum, block| sum + block).unwrap_or(0.0)
        };
        let expected: Vec<f32> = (0..rows * columns).map(element).collect();
        for by in tiles() {
            prop_assert_eq!(bits(&matmul(by, [&lhs, &rhs], &to, false, false)), bits(&expected), "{:?}", by);
        }
    }

    /// Exponents of all sizes, subnormal numbers, infinities and NaN.
    #[test]
    fn tiles_give_the_bits_of_their_model_for_all_numbers(
        [rows, columns, depth] in [1..40_usize, 1..40_usize, 1..80_usize],
        (small, seed) in any::<(bool, u64)>(),
        [lhs, rhs] in [how(), how()],
    ) {
        let mut state = seed | 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        };
        // Products around the smallest normal number, or anything.
        let mut value = || match (small, next()) {
            (true, bits) => f32::from_bits(bits & 0x807f_ffff | (127 - 63 + bits % 9 - 4) << 23),
            (false, bits) if bits % 64 == 0 => f32::from_bits(bits | 0x7f80_0000),
            (false, bits) => f32::from_bits(bits & 0xbfff_ffff),
        };
        let mut filled = |sample: Sample| {
            let values = sample.values.iter().map(|_| value()).collect();
            Sample { values, ..sample }
        };
        let (lhs, rhs) = (filled(sample(rows, depth, lhs)), filled(sample(depth, columns, rhs)));
        let to = sample(rows, columns, (Lies::Rows, false, 0));
        let plain = |values: Vec<f32>| -> Vec<f32> {
            values.into_iter().map(|value| if value.is_nan() { f32::NAN } else { value }).collect()
        };
        for parts in [Parts::One, Parts::Two, Parts::Three] {
            let given = |by| matmul(by, [&given(by, &lhs).0, &given(by, &rhs).0], &to, false, false);
            let mut all = on_tiles(parts).map(|by| bits(&plain(given(by))));
            let first = all.next();
            all.for_each(|other| assert_eq!(Some(other), first, "{parts:?}"));
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
    fn half_precision_targets_take_the_sums_rounded_once(
        [rows, columns] in [size(), size()], depth in 0..=DEPTH, [lhs, rhs, to] in [how(), how(), how()],
    ) {
        let (lhs, rhs, to) = (sample(rows, depth, lhs), sample(depth, columns, rhs), sample(rows, columns, to));
        for by in all() {
            let ((lhs, _), (rhs, _)) = (given(by, &lhs), given(by, &rhs));
            let sums = matmul(by, [&lhs, &rhs], &to, false, false);
            let near: Vec<u16> = sums.iter().map(|&sum| bf16::from_f32(sum).to_bits()).collect();
            prop_assert_eq!(half_matmul(by, Half::Bf16, [&lhs, &rhs], &to), near, "{:?}", by);
            let near: Vec<u16> = sums.iter().map(|&sum| f16::from_f32(sum).to_bits()).collect();
            prop_assert_eq!(half_matmul(by, Half::F16, [&lhs, &rhs], &to), near, "{:?}", by);
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
    // Split operands are never read in place.
    let depths = |by| if is_split(by) { &[600][..] } else { &[600, 1024] };
    for (by, &depth) in all().flat_map(|by| depths(by).iter().map(move |depth| (by, depth))) {
        let how = |seed| (Lies::Rows, false, seed);
        let (lhs, rhs) = (sample(300, depth, how(1)), sample(depth, 1100, how(2)));
        let to = sample(300, 1100, how(3));
        let given = matmul(by, [&lhs, &rhs], &to, false, false);
        for (row, column) in
            [(0, 0), (239, 511), (240, 512), (299, 1099), (252, 31), (251, 32), (255, 1023), (256, 1024), (287, 1055)]
        {
            let part =
                |sample: &Sample, values: Vec<f32>, rows, columns| Sample { values, rows, columns, ..sample.clone() };
            let left = part(&lhs, lhs.values[row * depth..(row + 1) * depth].to_vec(), 1, depth);
            let right = part(&rhs, (0..depth).map(|k| rhs.values[k * 1100 + column]).collect(), depth, 1);
            let one = matmul(by, [&left, &right], &part(&to, vec![0.0], 1, 1), false, false);
            assert_eq!(given[row * 1100 + column].to_bits(), one[0].to_bits(), "{by:?}, row {row}, column {column}");
        }
    }
}

/// NaN, infinities, zeros of both signs, and the smallest numbers that are and are not subnormal: `f32` and `bf16`.
#[test]
fn special_elements_count_the_same_one_by_one_and_in_pairs() {
    let special = [
        0.0,
        -0.0,
        1.0,
        -3.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        f32::from_bits(0x007f_ffff),
        f32::from_bits(0x0040_0000),
        f32::from_bits(0x7f80_0001),
        f32::from_bits(0x3f80_8000),
        f32::from_bits(0x3f81_8000),
        f32::from_bits(0x7f7f_7fff),
    ];
    let count = special.len();
    for rounded in [false, true] {
        let lhs = Sample { rows: count, columns: 1, values: special.to_vec(), lies: Lies::Rows, rounded };
        let rhs = Sample { rows: 1, columns: count, ..lhs.clone() };
        let to = sample(count, count, (Lies::Rows, false, 0));
        let products = pairs().map(|by| matmul(by, [&lhs, &rhs], &to, false, false));
        // All products that are not subnormal; how a NaN is spelled is up to the processor.
        let plain = |products: Vec<f32>| -> Vec<u32> {
            let plain = products.iter().map(|&value| match () {
                () if value.is_nan() => f32::NAN,
                () if value.is_subnormal() => 0.0,
                () => value,
            });
            plain.map(f32::to_bits).map(|bits| if bits == (-0.0_f32).to_bits() { 0 } else { bits }).collect()
        };
        let all: Vec<_> = products.map(plain).collect();
        assert!(all.windows(2).all(|two| two[0] == two[1]), "rounded {rounded}: {all:x?}");
        let flushed = |value: f32| if value.is_subnormal() { 0.0 } else { value };
        // Numbers that are rounded here are taken as 0 before.
        let near = |value: f32| flushed(bf16::from_f32(if rounded { value } else { flushed(value) }).to_f32());
        let expected = special.iter().flat_map(|&left| special.map(|right| near(left) * near(right))).collect();
        assert!(all.iter().all(|given| *given == plain(Vec::clone(&expected))), "rounded {rounded}");
    }
}
