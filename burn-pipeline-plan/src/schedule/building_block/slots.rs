//! The slots of a rank's passes, and what can be read from them.

/// The passes of a microbatch on one rank, in the order in which it meets them; then W.
pub(super) const F0: usize = 0;
pub(super) const F1: usize = 1;
pub(super) const B1: usize = 2;
pub(super) const B0: usize = 3;
pub(super) const W: usize = 4;

/// Slots of the passes of every microbatch on one rank; W in the order in which they run, or none if not placed.
pub(super) type Slots = [Vec<usize>; 5];

/// What each slot of a rank holds: a pass and which one of its kind.
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

/// All passes as (slot, rank, pass, which), in running order.
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

/// The latest slot that a pass has to come after: its input from the next or previous rank, the pass before it of
/// the same microbatch, and the microbatch before it.
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
