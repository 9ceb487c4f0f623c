//! Schedules made of one repeated building block on a V, with memory set by the block (V-Half, V-Min, 1F1B-V).
//!
//! Guarantees: every F, I and W once on every rank, in an order that data dependencies allow, for any m >= 1;
//! the peak of activations (chunks, released at W) never above that of the plain repetition.
//!
//! A microbatch meets a rank four times: forward of chunk 0 (stage r), forward of chunk 1 (stage 2p-1-r),
//! backward of chunk 1, backward of chunk 0. A block says at which slot each of them runs.
//!
//! 1. Unroll: repeat the block every 6 slots, once a microbatch. A W goes into each free slot while one is owed.
//! 2. Move warm-up and cool-down passes, W too, to the earliest free slot that their inputs allow and that does
//!    not raise the peak ([`reorder`]). What lies between (from rank 0's first last backward to its last first
//!    forward) stays.
//! 3. Squeeze: keep each rank's order, start everything as soon as its inputs and its rank are free.
//! 4. Forget where W were; move the cool-down once more, with W filling free slots by themselves; squeeze with W
//!    placed as in 1.
//! 5. Lift the W once more and put them into the slots that are free now, those of chunk 1 first.
//!
//! Source: Qi et al., Pipeline Parallelism with Controllable Memory (2024), and its scheduler by Sea AI Lab, whose
//! orders these are for F = I = W.

mod reorder;

use super::{Family, ScheduleError, Size, refuse_large};
use crate::plan::{Action, Placement, Plan};

/// Slots between two microbatches: six passes of a microbatch on each rank.
const PERIOD: usize = 6;

/// The passes of a microbatch on one rank, in the order in which it meets them; then W.
pub(super) const F0: usize = 0;
pub(super) const F1: usize = 1;
pub(super) const B1: usize = 2;
pub(super) const B0: usize = 3;
pub(super) const W: usize = 4;

/// Slots of the passes of every microbatch on one rank; W in the order in which they run, or none if not placed.
pub(super) type Slots = [Vec<usize>; 5];

/// Builds a plan from the slots of [F0, F1, B1, B0] of the first microbatch on each rank.
pub(super) fn build(family: &Family, size: Size, block: impl Fn(usize) -> [usize; 4]) -> Result<Plan, ScheduleError> {
    refuse_large(family, size, size.microbatches + size.ranks)?;
    let mut ranks: Vec<Slots> = (0..size.ranks).map(|rank| unroll(block(rank), size.microbatches)).collect();
    ranks.iter_mut().for_each(place_weights);
    reorder::with_weights(&mut ranks);
    squeeze(&mut ranks);
    ranks.iter_mut().for_each(|slots| slots[W].clear());
    reorder::without_weights(&mut ranks);
    ranks.iter_mut().for_each(place_weights);
    squeeze(&mut ranks);
    ranks.iter_mut().for_each(place_weights);
    let rows = ranks.iter().enumerate().map(|(rank, slots)| row(slots, rank, size.ranks)).collect();
    Ok(Plan::new(family.name, Placement::v(size.ranks)?, vec![size.microbatches], rows)?)
}

/// Builds a plan with whole backwards, which take two slots (the second is kept as a W in [`Slots`]), from the
/// slots of [F0, F1, B1, B0] of the first microbatch on each rank: unrolled, and every pass moved as in 2.
pub(super) fn build_whole(
    family: &Family,
    size: Size,
    block: impl Fn(usize) -> [usize; 4],
) -> Result<Plan, ScheduleError> {
    refuse_large(family, size, size.microbatches + size.ranks)?;
    let mut ranks: Vec<Slots> = (0..size.ranks).map(|rank| unroll(block(rank), size.microbatches)).collect();
    for slots in &mut ranks {
        let mut seconds: Vec<usize> = slots[B1].iter().chain(&slots[B0]).map(|slot| slot + 1).collect();
        seconds.sort_unstable();
        slots[W] = seconds;
    }
    reorder::whole_backwards(&mut ranks);
    let row = |(rank, slots): (usize, &Slots)| {
        let (first, last) = (rank, 2 * size.ranks - 1 - rank);
        let action = |(pass, mb): (usize, usize)| match pass {
            F0 => Some(Action::forward(first, mb)),
            F1 => Some(Action::forward(last, mb)),
            B1 => Some(Action::backward(last, mb)),
            B0 => Some(Action::backward(first, mb)),
            _ => None,
        };
        occupancy(slots).into_iter().flatten().filter_map(action).collect()
    };
    let rows = ranks.iter().enumerate().map(row).collect();
    Ok(Plan::new(family.name, Placement::v(size.ranks)?, vec![size.microbatches], rows)?)
}

/// A block's passes, repeated once a microbatch.
fn unroll(block: [usize; 4], microbatches: usize) -> Slots {
    let [f0, f1, b1, b0] = block.map(|offset| (0..microbatches).map(|mb| offset + PERIOD * mb).collect());
    [f0, f1, b1, b0, Vec::new()]
}

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

/// Puts a W into every free slot while one is owed, and the rest after the last pass; W placed before are lifted.
fn place_weights(slots: &mut Slots) {
    slots[W].clear();
    let cells = occupancy(slots);
    let mut owed = 0;
    let mut weights = Vec::with_capacity(2 * slots[F0].len());
    for (time, cell) in cells.iter().enumerate() {
        match cell {
            Some((B1 | B0, _)) => owed += 1,
            None if owed > 0 => {
                weights.push(time);
                owed -= 1;
            }
            _ => {}
        }
    }
    weights.extend(cells.len()..cells.len() + owed);
    slots[W] = weights;
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

/// Starts every pass as soon as its inputs are there and its rank is free, in the order that the slots give.
fn squeeze(ranks: &mut [Slots]) {
    let mut free = vec![0; ranks.len()];
    for (_, rank, pass, mb) in in_order(ranks) {
        let slot = latest_input(ranks, rank, pass, mb).map_or(0, |input| input + 1).max(free[rank]);
        ranks[rank][pass][mb] = slot;
        free[rank] = slot + 1;
    }
}

/// A rank's actions, W of chunk 1 before W of chunk 0 where both are owed.
fn row(slots: &Slots, rank: usize, ranks: usize) -> Vec<Action> {
    let (first, last) = (rank, 2 * ranks - 1 - rank);
    let mut owed: [std::ops::Range<usize>; 2] = [0..0, 0..0];
    let mut row = Vec::with_capacity(PERIOD * slots[F0].len());
    for (pass, mb) in occupancy(slots).into_iter().flatten() {
        row.push(match pass {
            F0 => Action::forward(first, mb),
            F1 => Action::forward(last, mb),
            B1 => {
                owed[1].end += 1;
                Action::backward_input(last, mb)
            }
            B0 => {
                owed[0].end += 1;
                Action::backward_input(first, mb)
            }
            _ => {
                let (stage, weight) = match owed[1].next() {
                    Some(weight) => (last, weight),
                    None => (first, owed[0].next().unwrap_or(mb)),
                };
                Action::backward_weight(stage, weight)
            }
        });
    }
    row
}
