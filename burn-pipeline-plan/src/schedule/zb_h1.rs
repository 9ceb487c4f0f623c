//! ZB-H1, handcrafted: 1F1B with a split backward, at 1F1B's memory and about a third of its bubble.
//!
//! ```text
//! p=2 v=1 m=3
//! rank 0: 0F0 0F1     0I0 0W0 0F2 0I1 0W1 0I2 0W2
//! rank 1:     1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2
//! ```
//!
//! On rank r, for x = 0, 1, 2, ...: F of microbatch x, then I of microbatch x - (p-1-r), then W of microbatch x -
//! (p-1), each if that microbatch exists. The backwards start as soon as they can. The `W` of all ranks start
//! together, late enough to fill the cool-down.
//!
//! Bubble `(p-1)(F+B-W)`; every rank holds p activations at its peak.
//! Source: Qi et al., Zero Bubble Pipeline Parallelism (2023), section 3.1.

use super::fixed::Fixed;
use super::schedule_trait::{Chunks, ScheduleInfo};
use crate::plan::{Action, PlacementKind};

pub(super) const SCHEDULE: Fixed = Fixed {
    info: ScheduleInfo::new("ZBH1", PlacementKind::Loop, Chunks::Exactly(1), "Qi et al. 2023, arXiv:2401.10241"),
    build: |info, size| {
        info.plan(size, |rank| lagged_row(rank, size.microbatches, size.ranks - 1 - rank, size.ranks - 1))
    },
};

/// F, I and W in turn, with I `input_lag` and W `weight_lag` microbatches behind F.
pub(super) fn lagged_row(rank: usize, microbatches: usize, input_lag: usize, weight_lag: usize) -> Vec<Action> {
    let mut row = Vec::with_capacity(3 * microbatches);
    let of = |x: usize, lag: usize| x.checked_sub(lag).filter(|&m| m < microbatches);
    for x in 0..microbatches + weight_lag {
        row.extend(of(x, 0).map(|m| Action::forward(rank, m)));
        row.extend(of(x, input_lag).map(|m| Action::backward_input(rank, m)));
        row.extend(of(x, weight_lag).map(|m| Action::backward_weight(rank, m)));
    }
    row
}
