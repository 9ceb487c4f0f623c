//! The mark before a tensor of which each member of a tensor-parallel group holds a piece.
//!
//! Guarantees: a mark crosses every link like a tag, and differs from every other tag and list length.
//!
//! The mark is a tag, so links and captured programs need not know it. Code that compares or prints what crosses a
//! boundary reads it ([`CutOver::of`]).

use super::parts::EDGE;
use std::fmt;

/// The axis along which a tensor is cut, and the number of its pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CutOver {
    pub(crate) axis: usize,
    /// The number of ranks. Each holds one piece, all of one size.
    pub(crate) ranks: usize,
}

/// The bit that only marks have.
const MARK: usize = 1 << (usize::BITS - 1);
/// The number of bits for the number of ranks.
const RANKS: u32 = 24;

impl CutOver {
    /// The mark as a tag.
    pub(crate) fn tag(self) -> usize {
        MARK | self.axis << RANKS | self.ranks
    }

    /// The mark that a tag encodes; `None` for other tags.
    pub(crate) fn of(tag: usize) -> Option<Self> {
        let (axis, ranks) = ((tag & !MARK) >> RANKS, tag & ((1 << RANKS) - 1));
        (tag != EDGE && tag & MARK != 0).then_some(Self { axis, ranks })
    }

    /// The shape of the whole tensor, given a piece's; sizes may be unknown.
    pub(crate) fn whole(self, piece: &[Option<usize>]) -> Vec<Option<usize>> {
        let size = |(axis, size): (usize, &Option<usize>)| match axis == self.axis {
            true => size.map(|size| size.saturating_mul(self.ranks)),
            false => *size,
        };
        piece.iter().enumerate().map(size).collect()
    }
}

impl fmt::Display for CutOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cut along axis {} over {} rank(s)", self.axis, self.ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_written_and_no_other_tag_is_one() {
        for (axis, ranks) in [(0, 1), (0, 2), (3, 8), (15, 4096)] {
            let mark = CutOver { axis, ranks };
            assert_eq!(CutOver::of(mark.tag()), Some(mark));
        }
        for tag in [0, 1, 2, 1 << 20, usize::MAX >> 1, EDGE] {
            assert_eq!(CutOver::of(tag), None);
        }
    }
}
