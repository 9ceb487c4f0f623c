//! The row of a sum over rows to which each row is added.

use std::ops::Range;

/// Appends the row of the sum for each of these rows. `dims` are the sizes of the dimensions over which rows are
/// counted, the last one fastest, and whether each stays. Rows along the last dimension are handled together: a
/// division for each row took longer than the sums.
pub(super) fn extend_rows(dims: &[(usize, bool)], rows: Range<usize>, to: &mut Vec<usize>) {
    let Some((&(size, stays), outer)) = dims.split_last() else { return to.extend(rows.map(|_| 0)) };
    let mut row = rows.start;
    while row < rows.end {
        let (within, end) = (row % size, (row - row % size + size).min(rows.end));
        let (mut place, mut step, mut left) = (0, 1, row / size);
        for &(size, stays) in outer.iter().rev() {
            if stays {
                place += left % size * step;
                step *= size;
            }
            left /= size;
        }
        match stays {
            true => to.extend((0..end - row).map(|more| place * size + within + more)),
            false => to.resize(to.len() + end - row, place),
        }
        row = end;
    }
}

#[cfg(test)]
mod tests {
    use super::extend_rows;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rows_are_added_where_their_indices_without_summed_dimensions_say(
            dims in prop::collection::vec((1_usize..5, any::<bool>()), 0..4),
            cut in (0_usize..70, 0_usize..70),
        ) {
            let count: usize = dims.iter().map(|(size, _)| size).product();
            let rows = cut.0.min(count)..cut.1.min(count).max(cut.0.min(count));
            let place = |row: usize| {
                let inner = |dim: usize| dims[dim + 1..].iter().map(|(size, _)| size).product::<usize>();
                let index = |dim: usize| row / inner(dim) % dims[dim].0;
                (0..dims.len()).filter(|&dim| dims[dim].1).fold(0, |place, dim| place * dims[dim].0 + index(dim))
            };
            let mut places = Vec::new();
            extend_rows(&dims, rows.clone(), &mut places);
            prop_assert_eq!(places, rows.map(place).collect::<Vec<_>>());
        }
    }
}
