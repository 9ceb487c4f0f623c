//! The slots of a rank's operations, and their order and inputs.

/// The operations of a microbatch on one rank, in running order; then W.
pub(super) const F0: usize = 0;
pub(super) const F1: usize = 1;
pub(super) const B1: usize = 2;
pub(super) const B0: usize = 3;
pub(super) const W: usize = 4;

/// The slots of every microbatch's operations on one rank. W are in running order; empty while W are not placed.
pub(super) type Slots = [Vec<usize>; 5];

/// The contents of each slot of a rank: an operation, and its number among those of its kind.
pub(super) fn occupancy(slots: &Slots) -> Vec<Option<(usize, usize)>> {
    let length = slots.iter().filter_map(|times| times.last()).max().map_or(0, |last| last + 1);
    let mut cells = vec![None; length];
    for (pass, times) in slots.iter().enumerate() {
        for (mb, &time) in times.iter().enumerate() {
            cells[time] = Some((pass, mb));
        }
    }
    cells
}

/// All operations as (slot, rank, operation, number), in running order.
pub(super) fn in_order(ranks: &[Slots]) -> Vec<(usize, usize, usize, usize)> {
    let mut events = Vec::with_capacity(ranks.iter().flatten().map(Vec::len).sum());
    for (rank, slots) in ranks.iter().enumerate() {
        for (pass, times) in slots.iter().enumerate() {
            events.extend(times.iter().enumerate().map(|(mb, &time)| (time, rank, pass, mb)));
        }
    }
    events.sort_unstable();
    events
}

/// The latest slot that must precede an operation: that of its input from the next or previous rank, of the
/// previous operation of the same microbatch, or of the same operation of the previous microbatch.
pub(super) fn latest_input(ranks: &[Slots], rank: usize, pass: usize, mb: usize) -> Option<usize> {
    let neighbour = match pass {
        F0 | B1 => rank.checked_sub(1),
        F1 | B0 => Some(rank + 1).filter(|&next| next < ranks.len()),
        _ => None,
    };
    let from_neighbour = neighbour.map(|other| ranks[other][pass][mb]);
    let from_rank = (F1..=B0).contains(&pass).then(|| ranks[rank][pass - 1][mb]);
    let from_previous = mb.checked_sub(1).map(|previous| ranks[rank][pass][previous]);
    [from_neighbour, from_rank, from_previous].into_iter().flatten().max()
}
