//! Blocks of a product, packed and multiplied.

use super::kernel::{PANELS, ROWS, Target, tile};
use super::pack::{LANES, Line, Operand, pack};
use super::{Bf16, Elements, Matrix};
use rayon::prelude::*;
use std::arch::x86_64::{__m256bh, __m256i, _mm256_storeu_si256, _mm512_cvtneps_pbh, _mm512_loadu_ps};
use std::cell::RefCell;
use std::mem::{MaybeUninit, transmute};
use std::ops::Range;

/// Depth of a block; what is summed in registers.
pub(super) const DEPTH: usize = 512;
/// Rows of a block.
const BLOCK_ROWS: usize = 256;
/// Columns of a block.
const BLOCK_COLUMNS: usize = 1024;
/// Columns of a tile.
const COLUMNS: usize = PANELS * LANES;

thread_local! {
    /// Packed blocks, of rows and of columns.
    static PACKED: RefCell<[Vec<Line>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

#[derive(Clone, Copy)]
struct Shared<T>(T);

// SAFETY: operands are only read, and each piece of a product writes elements of its own.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T: Copy> Shared<T> {
    fn get(&self) -> T {
        self.0
    }
}

/// Writes a product, or adds it to what is there; on all threads if `parallel`. Sizes are rows, columns and depth.
///
/// # Safety
/// The matrices have these sizes; nothing else refers to the elements of `to`, which are all at places of their own.
pub(crate) unsafe fn multiply(
    _: Bf16,
    sizes: [usize; 3],
    to: Matrix<*mut f32>,
    lhs: Matrix<Elements>,
    rhs: Matrix<Elements>,
    add: bool,
    parallel: bool,
) {
    let [rows, columns, depth] = sizes;
    // Rows are written, so they become columns where these follow each other; what is summed stays the same.
    if to.column != 1 && to.row == 1 {
        // SAFETY: the caller's promise.
        return unsafe { along_rows([columns, rows, depth], to.turned(), rhs.turned(), lhs.turned(), add, parallel) };
    }
    // SAFETY: the caller's promise.
    unsafe { along_rows(sizes, to, lhs, rhs, add, parallel) };
}

/// # Safety
/// As for [`multiply`].
unsafe fn along_rows(
    [rows, columns, depth]: [usize; 3],
    to: Matrix<*mut f32>,
    lhs: Matrix<Elements>,
    rhs: Matrix<Elements>,
    add: bool,
    parallel: bool,
) {
    let threads = if parallel { rayon::current_num_threads() } else { 1 };
    let shared = Shared((to, lhs, rhs));
    let piece = |rows: Range<usize>, columns: Range<usize>| {
        let (to, lhs, rhs) = shared.get();
        // SAFETY: the caller's promise; pieces are parts of the product, and AVX512-BF16 was found.
        unsafe { blocks([rows, columns], depth, to, lhs, rhs, add) };
    };
    if threads == 1 {
        return piece(0..rows, 0..columns);
    }
    match rows >= columns {
        true => pieces(rows, threads, ROWS).into_par_iter().for_each(|rows| piece(rows, 0..columns)),
        false => pieces(columns, threads, COLUMNS).into_par_iter().for_each(|columns| piece(0..rows, columns)),
    }
}

/// So many pieces of about the same size, of whole tiles but for the last one.
fn pieces(size: usize, count: usize, step: usize) -> Vec<Range<usize>> {
    let each = size.div_ceil(count).next_multiple_of(step).max(step);
    cut(0..size, each).collect()
}

fn cut(range: Range<usize>, each: usize) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(each).map(move |first| first..range.end.min(first + each))
}

/// A part of a product, block by block.
///
/// # Safety
/// As for [`multiply`], on a processor with AVX512-BF16.
unsafe fn blocks(
    [rows, columns]: [Range<usize>; 2],
    depth: usize,
    to: Matrix<*mut f32>,
    lhs: Matrix<Elements>,
    rhs: Matrix<Elements>,
    add: bool,
) {
    if depth == 0 && !add {
        return rows.for_each(|row| {
            for column in columns.clone() {
                // SAFETY: the caller's promise.
                unsafe { *to.at.offset(row as isize * to.row + column as isize * to.column) = 0.0 };
            }
        });
    }
    PACKED.with_borrow_mut(|[left, right]| {
        for depths in cut(0..depth, DEPTH) {
            let (pairs, add) = (depths.len().div_ceil(2), add || depths.start > 0);
            for columns in cut(columns.clone(), BLOCK_COLUMNS) {
                // SAFETY: the caller's promise.
                unsafe { packed(rhs.turned(), columns.clone(), depths.clone(), right) };
                for rows in cut(rows.clone(), BLOCK_ROWS) {
                    // SAFETY: as above.
                    unsafe {
                        packed(lhs, rows.clone(), depths.clone(), left);
                        tiles(pairs, [&left[..], &right[..]], [rows, columns.clone()], to, add);
                    }
                }
            }
        }
    });
}

/// Packs some rows of a matrix over some of its columns.
///
/// # Safety
/// The matrix has them, and the processor AVX512-BF16.
unsafe fn packed(matrix: Matrix<Elements>, lanes: Range<usize>, depths: Range<usize>, to: &mut Vec<Line>) {
    let lines = lanes.len().div_ceil(LANES) * depths.len().div_ceil(2);
    if to.len() < lines {
        to.resize(lines, Line::default());
    }
    let (lane, depth) = (matrix.row, matrix.column);
    // SAFETY: the caller's promise.
    unsafe {
        match matrix.at {
            Elements::F32(at) => pack(Operand { at, lane, depth }, lanes, depths, &mut to[..lines]),
            Elements::Bf16(at) => pack(Operand { at, lane, depth }, lanes, depths, &mut to[..lines]),
        }
    }
}

/// Multiplies two packed blocks, tile by tile.
///
/// # Safety
/// Blocks are of these rows and columns and this deep; otherwise as for [`multiply`], on a processor with AVX512-BF16.
unsafe fn tiles(
    pairs: usize,
    [left, right]: [&[Line]; 2],
    [rows, columns]: [Range<usize>; 2],
    to: Matrix<*mut f32>,
    add: bool,
) {
    for column in cut(columns.clone(), COLUMNS) {
        let panel = (column.start - columns.start) / LANES * pairs;
        // The second panel is read only where there is one.
        let panels = [right[panel..].as_ptr(), right[panel..].as_ptr().wrapping_add(pairs)];
        for row in cut(rows.clone(), ROWS) {
            let within = row.start - rows.start;
            let half = (left[within / LANES * pairs..].as_ptr(), within % LANES);
            let (rows, columns) = (row.len(), column.len());
            // SAFETY: the caller's promise.
            unsafe {
                let at = to.at.offset(row.start as isize * to.row + column.start as isize * to.column);
                if to.column == 1 {
                    tile(pairs, half, panels, Target { at, row: to.row, rows, columns, add });
                } else {
                    apart(pairs, half, panels, Matrix { at, ..to }, [rows, columns], add);
                }
            }
        }
    }
}

/// A tile whose elements do not follow each other.
///
/// # Safety
/// As for [`tile`].
unsafe fn apart(
    pairs: usize,
    half: (*const Line, usize),
    panels: [*const Line; PANELS],
    to: Matrix<*mut f32>,
    [rows, columns]: [usize; 2],
    add: bool,
) {
    let mut made = [0.0_f32; ROWS * COLUMNS];
    let target = Target { at: made.as_mut_ptr(), row: COLUMNS as isize, rows, columns, add: false };
    // SAFETY: the caller's promise.
    unsafe { tile(pairs, half, panels, target) };
    for row in 0..rows {
        for column in 0..columns {
            let value = made[row * COLUMNS + column];
            // SAFETY: as above.
            unsafe {
                let to = to.at.offset(row as isize * to.row + column as isize * to.column);
                *to = if add { *to + value } else { value };
            }
        }
    }
}

/// Rounds numbers as products do.
///
/// # Panics
/// If there are not as many places as numbers.
pub(crate) fn round(_: Bf16, from: &[f32], to: &mut [MaybeUninit<u16>]) {
    assert_eq!(from.len(), to.len(), "each number has a place");
    // SAFETY: AVX512-BF16 was found.
    unsafe { rounded(from, to) };
}

#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn rounded(from: &[f32], to: &mut [MaybeUninit<u16>]) {
    let one = |from: *const f32, to: *mut u16| {
        // SAFETY: there are 16 numbers, and places for them.
        unsafe {
            let made = _mm512_cvtneps_pbh(_mm512_loadu_ps(from));
            _mm256_storeu_si256(to.cast(), transmute::<__m256bh, __m256i>(made));
        }
    };
    let (whole, last) = from.as_chunks::<LANES>();
    let (to, to_last) = to.as_chunks_mut::<LANES>();
    whole.iter().zip(to).for_each(|(from, to)| one(from.as_ptr(), to.as_mut_ptr().cast()));
    let (mut numbers, mut made) = ([0.0; LANES], [0; LANES]);
    numbers[..last.len()].copy_from_slice(last);
    one(numbers.as_ptr(), made.as_mut_ptr());
    to_last.iter_mut().zip(made).for_each(|(to, made)| _ = to.write(made));
}
