//! Steps 1, 3, 4 and 5 of the [module](super): from one block to the rows of a plan.

use super::reorder;
use super::slots::{B0, B1, F0, F1, Slots, W, in_order, latest_input, occupancy};
use crate::plan::{Action, Plan};
use crate::schedule::schedule_trait::{ScheduleError, ScheduleInfo, Size};

/// Slots between two microbatches: each has six operations on each rank.
const PERIOD: usize = 6;

/// Builds a plan from the slots of [F0, F1, B1, B0] of the first microbatch on each rank.
pub(in crate::schedule) fn build(
    schedule: &ScheduleInfo,
    size: Size,
    block: impl Fn(usize) -> [usize; 4],
) -> Result<Plan, ScheduleError> {
    schedule.check_length(size, size.microbatches + size.ranks)?;
    let mut ranks: Vec<Slots> = (0..size.ranks).map(|rank| unroll(block(rank), size.microbatches)).collect();
    ranks.iter_mut().for_each(place_weights);
    reorder::reorder(&mut ranks, false);
    squeeze(&mut ranks);
    ranks.iter_mut().for_each(|slots| slots[W].clear());
    reorder::reorder(&mut ranks, true);
    ranks.iter_mut().for_each(place_weights);
    squeeze(&mut ranks);
    ranks.iter_mut().for_each(place_weights);
    schedule.plan(size, |rank| row(&ranks[rank], rank, size.ranks, false))
}

/// Builds a plan with whole backwards from the slots of [F0, F1, B1, B0] of the first microbatch on each rank:
/// unrolled, with every operation moved as in step 2. A whole backward takes two slots; [`Slots`] stores the second
/// as a W.
pub(in crate::schedule) fn build_whole(
    schedule: &ScheduleInfo,
    size: Size,
    block: impl Fn(usize) -> [usize; 4],
) -> Result<Plan, ScheduleError> {
    schedule.check_length(size, size.microbatches + size.ranks)?;
    let mut ranks: Vec<Slots> = (0..size.ranks).map(|rank| unroll(block(rank), size.microbatches)).collect();
    for slots in &mut ranks {
        slots[W] = reorder::sorted_backwards(slots).into_iter().map(|slot| slot + 1).collect();
    }
    reorder::whole_backwards(&mut ranks);
    schedule.plan(size, |rank| row(&ranks[rank], rank, size.ranks, true))
}

/// Repeats a block's operations for every microbatch.
fn unroll(block: [usize; 4], microbatches: usize) -> Slots {
    let [f0, f1, b1, b0] = block.map(|offset| (0..microbatches).map(|mb| offset + PERIOD * mb).collect());
    [f0, f1, b1, b0, Vec::new()]
}

/// Places all W again: one in every free slot while one is due, the rest after the last operation.
fn place_weights(slots: &mut Slots) {
    slots[W].clear();
    let cells = occupancy(slots);
    let mut due = 0;
    let mut weights = Vec::with_capacity(2 * slots[F0].len());
    for (time, cell) in cells.iter().enumerate() {
        match cell {
            Some((B1 | B0, _)) => due += 1,
            None if due > 0 => {
                weights.push(time);
                due -= 1;
            }
            _ => {}
        }
    }
    weights.extend(cells.len()..cells.len() + due);
    slots[W] = weights;
}

/// Starts every operation, in slot order, as soon as its inputs are available and its rank is free.
fn squeeze(ranks: &mut [Slots]) {
    let mut free = vec![0; ranks.len()];
    for (_, rank, pass, mb) in in_order(ranks) {
        let slot = latest_input(ranks, rank, pass, mb).map_or(0, |input| input + 1).max(free[rank]);
        ranks[rank][pass][mb] = slot;
        free[rank] = slot + 1;
    }
}

/// A rank's actions, with whole backwards or split ones. If W of both chunks are due, one of chunk 1 runs first.
fn row(slots: &Slots, rank: usize, ranks: usize, whole: bool) -> Vec<Action> {
    let stages = [rank, 2 * ranks - 1 - rank];
    let mut due: [std::ops::Range<usize>; 2] = [0..0, 0..0];
    let mut row = Vec::with_capacity(PERIOD * slots[F0].len());
    for (pass, mb) in occupancy(slots).into_iter().flatten() {
        let chunk = usize::from(matches!(pass, F1 | B1));
        match pass {
            F0 | F1 => row.push(Action::forward(stages[chunk], mb)),
            B1 | B0 if whole => row.push(Action::backward(stages[chunk], mb)),
            B1 | B0 => {
                due[chunk].end += 1;
                row.push(Action::backward_input(stages[chunk], mb));
            }
            // The second slot of a whole backward.
            _ if whole => {}
            _ => {
                let (chunk, weight) = match due[1].next() {
                    Some(weight) => (1, weight),
                    None => (0, due[0].next().unwrap_or(mb)),
                };
                row.push(Action::backward_weight(stages[chunk], weight));
            }
        }
    }
    row
}
