//! The known name nearest to an unknown one.
//!
//! Guarantees: a name is suggested only if at most one letter in three differs; in a tie, the first.
//!
//! Distances are those of optimal string alignment: letters inserted, removed, replaced, or swapped with a
//! neighbour.

/// Returns the name that takes the fewest edits to become `wanted`. `names` are pairs of a spelling and its name.
pub(super) fn nearest(wanted: &str, names: impl Iterator<Item = (String, &'static str)>) -> Option<&'static str> {
    let near = names.filter_map(|(spelt, name)| {
        let most = wanted.len().max(spelt.len()) / 3;
        // A much longer word is not compared letter by letter: it may be user input of any length.
        let alike = wanted.len().abs_diff(spelt.len()) <= most;
        let edits = alike.then(|| edits(wanted, &spelt)).filter(|edits| *edits <= most);
        edits.map(|edits| (edits, name))
    });
    near.min_by_key(|(edits, _)| *edits).map(|(_, name)| name)
}

/// The number of edits that turn one word into the other.
fn edits(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    // Distances from the first `row` letters of `from` to the first `column` of `to`.
    let mut table = vec![vec![0; to.len() + 1]; from.len() + 1];
    for row in 0..=from.len() {
        for column in 0..=to.len() {
            table[row][column] = if row == 0 || column == 0 {
                row + column
            } else {
                let replaced = table[row - 1][column - 1] + usize::from(from[row - 1] != to[column - 1]);
                let edited = replaced.min(table[row - 1][column] + 1).min(table[row][column - 1] + 1);
                let swaps = row > 1 && column > 1 && from[row - 1] == to[column - 2] && from[row - 2] == to[column - 1];
                if swaps { edited.min(table[row - 2][column - 2] + 1) } else { edited }
            };
        }
    }
    table[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted_as_by_hand() {
        let cases = [("", "", 0), ("", "abc", 3), ("1f1b", "1fb1", 1), ("kitten", "sitting", 3), ("gpipe", "gpipe", 0)];
        for (from, to, count) in cases {
            assert_eq!((edits(from, to), edits(to, from)), (count, count), "{from} {to}");
        }
    }
}
