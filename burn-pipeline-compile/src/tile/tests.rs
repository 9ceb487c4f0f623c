//! Compares tiles with loops over their elements, in uninitialised storage: under Miri, reading it is an error.

use super::math::one;
use super::{Argument, Buffer, Instruction, Sum, Tile, Work, run};
use crate::graph::{Map, Reduction};
use std::mem::MaybeUninit;

const ROWS: usize = 5;
const COLUMNS: usize = 37;

fn instruction(work: Work, wide: bool, to: usize, arguments: [Argument; 3]) -> Instruction {
    Instruction { work, wide, to, arguments, rounds: None }
}

/// Runs over two inputs. Returns a wide output, a row output, and sums over rows.
fn outputs(x: &mut [f32], y: &mut [f32], step: usize) -> [Vec<f32>; 3] {
    let room = |length: usize| vec![MaybeUninit::<f32>::uninit(); length];
    let (mut wide, mut slot, mut row) = (room(ROWS * step), room(ROWS * COLUMNS), room(ROWS));
    let mut sums = vec![0.0_f32; COLUMNS];
    let buffers = [
        Buffer { at: x.as_mut_ptr(), step: COLUMNS },
        Buffer { at: y.as_mut_ptr(), step: 1 },
        Buffer { at: wide.as_mut_ptr().cast(), step },
        Buffer { at: row.as_mut_ptr().cast(), step: 1 },
        Buffer { at: slot.as_mut_ptr().cast(), step: COLUMNS },
    ];
    let none = Argument::None;
    let code = [
        instruction(Work::Map(Map::Mul), true, 4, [Argument::Wide(0), Argument::Row(1), none]),
        instruction(Work::Map(Map::Square), true, 2, [Argument::Wide(4), none, none]),
        instruction(Work::Reduce(Reduction::Sum), false, 3, [Argument::Wide(2), none, none]),
        instruction(Work::Map(Map::Select), true, 2, [Argument::Wide(4), Argument::Wide(0), Argument::Scalar(7.0)]),
    ];
    let tile = Tile { rows: ROWS, columns: COLUMNS, buffers: &buffers };
    let places = [0; ROWS];
    let sum = Sum { from: Argument::Wide(2), columns: COLUMNS, step: COLUMNS, to: sums.as_mut_ptr(), rows: &places };
    // SAFETY: buffers have the tile's rows, each read after it was written, and none overlaps another.
    unsafe { run(&code, tile, &[sum]) };
    // SAFETY: the instructions have written all of the rows.
    let written = |values: &[MaybeUninit<f32>]| values.iter().map(|value| unsafe { value.assume_init() }).collect();
    let of_wide = wide.chunks(step).flat_map(|row| written(&row[..COLUMNS])).collect::<Vec<f32>>();
    [of_wide, written(&row), sums]
}

#[test]
fn tiles_are_loops_over_their_elements() {
    let x: Vec<f32> = (0..ROWS * COLUMNS).map(|at| if at % 7 == 0 { 0.0 } else { at as f32 - 90.0 }).collect();
    let y: Vec<f32> = (0..ROWS).map(|row| 0.5 + row as f32).collect();
    let product = |row: usize, column: usize| x[row * COLUMNS + column] * y[row];
    let chosen = |row: usize, column: usize| if product(row, column) != 0.0 { x[row * COLUMNS + column] } else { 7.0 };
    let all = || (0..ROWS).flat_map(|row| (0..COLUMNS).map(move |column| (row, column)));
    let wide: Vec<f32> = all().map(|(row, column)| chosen(row, column)).collect();
    let rows: Vec<f64> =
        (0..ROWS).map(|row| (0..COLUMNS).map(|column| f64::from(product(row, column)).powi(2)).sum()).collect();
    let sums: Vec<f32> = (0..COLUMNS).map(|column| (0..ROWS).map(|row| chosen(row, column)).sum()).collect();
    for step in [COLUMNS, COLUMNS + 3] {
        let [got_wide, got_rows, got_sums] = outputs(&mut x.clone(), &mut y.clone(), step);
        assert_eq!((&got_wide, &got_sums), (&wide, &sums));
        assert!(
            got_rows.iter().zip(&rows).all(|(got, row)| (f64::from(*got) - row).abs() <= 1e-5 * row),
            "{got_rows:?}"
        );
    }
}

#[test]
fn gelu_without_fused_multiply_add_is_within_the_error_of_both() {
    for x in (-9_000..9_000).map(|step| step as f32 * 1e-3) {
        let (with, without) = (one::<true>(Map::Gelu, x), one::<false>(Map::Gelu, x));
        assert!((with - without).abs() <= 2.4e-7 * x.abs(), "gelu of {x} is {with}, and {without} without");
    }
}
