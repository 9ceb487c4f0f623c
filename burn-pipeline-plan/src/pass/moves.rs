//! The first moves of a pass: a debugging aid to find the move after which numbers are wrong.
//!
//! ```text
//! before     0F0 0F1 0SEND_F0 0SEND_F1         first move   0F0 0SEND_F0 0F1 0SEND_F1
//! ```
//!
//! Guarantees: zero moves give the plan itself, and all moves the moved plan. Any two cells of a row are in the order
//! that they have in one of the two plans. So after passes of [`overlap`](super::overlap) that keep the order of starts
//! (all but one do), every number of moves gives a plan that passes [`check`](Plan::check).
//!
//! 1. A row is written in its new order. Each cell that runs before one that preceded it counts as a move.
//! 2. After the last requested move, the other cells follow in their old order.
//!
//! This is the counterpart of `reorder_iterative_debug_limit_to_reorder` in PyTorch's `torch/_inductor/comms.py`,
//! which limits the starts that one pass works on.

use super::error::PassError;
use crate::plan::{Action, Plan};
use std::collections::{HashMap, VecDeque};

impl Plan {
    /// The plan after the first `moves` of the moves that turn it into `moved`, counted rank by rank, and the
    /// number of moves made, which is smaller if there are fewer.
    ///
    /// Use it to bisect for the move after which a step's numbers are wrong. Idle cells are dropped.
    ///
    /// # Errors
    /// Returns [`PassError::OtherCells`] if a rank's row does not have the same cells in both plans.
    ///
    /// ```
    /// use burn_pipeline_plan::plan::Plan;
    /// let before = Plan::from_csv("mine", "0F0,0F1,0B0,0B1\n")?;
    /// let after = Plan::from_csv("mine", "0F0,0B0,0F1,0B1\n")?;
    /// assert_eq!(before.first_moves(&after, 0)?, (before.clone(), 0));
    /// assert_eq!(before.first_moves(&after, usize::MAX)?, (after.clone(), 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn first_moves(&self, moved: &Plan, moves: usize) -> Result<(Plan, usize), PassError> {
        let (from, to) = (self.without_idle(), moved.without_idle());
        let mut made = 0;
        let row = |rank: usize| {
            let new = if rank < to.ranks() { to.row(rank) } else { &[] };
            let places = places(from.row(rank), new).ok_or(PassError::OtherCells { rank })?;
            Ok(towards(from.row(rank), &places, moves, &mut made))
        };
        let rows = (0..from.ranks()).map(row).collect::<Result<_, PassError>>()?;
        Ok((from.with_rows(rows), made))
    }
}

/// The index in the old row of each cell of the new one; `None` if one row has a cell that the other does not.
fn places(old: &[Action], new: &[Action]) -> Option<Vec<usize>> {
    let mut places: HashMap<Action, VecDeque<usize>> = HashMap::new();
    for (place, &action) in old.iter().enumerate() {
        places.entry(action).or_default().push_back(place);
    }
    let found = new.iter().map(|action| places.get_mut(action)?.pop_front()).collect::<Option<Vec<usize>>>();
    found.filter(|found| found.len() == old.len())
}

/// The row in its new order until `moves` cells have moved, and then in its old order.
fn towards(old: &[Action], new: &[usize], moves: usize, made: &mut usize) -> Vec<Action> {
    let (mut placed, mut first) = (vec![false; old.len()], 0);
    let mut order = Vec::with_capacity(old.len());
    for &place in new {
        let moves_now = place != first;
        if moves_now && *made == moves {
            break;
        }
        *made += usize::from(moves_now);
        order.push(old[place]);
        placed[place] = true;
        while placed.get(first) == Some(&true) {
            first += 1;
        }
    }
    let rest = old.iter().zip(&placed).filter(|(_, placed)| !**placed);
    order.extend(rest.map(|(&action, _)| action));
    order
}
