//! The division of a batch between the two directions of a bidirectional placement.

/// Microbatches of each direction: half each, the odd one to the first.
pub(super) fn both_directions(microbatches: usize) -> [usize; 2] {
    [microbatches.div_ceil(2), microbatches / 2]
}
