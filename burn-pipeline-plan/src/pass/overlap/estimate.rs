//! Estimates, from a row alone, how much of a transfer or collective is hidden by computation and how much is
//! exposed.
//!
//! Guarantees: linear in the row, for all its starts (or all its waits) at once.
//!
//! 1. Computations between a start and its wait hide that much of it.
//! 2. If another operation is both started and awaited in between, the rank also blocks on that one. Then only the
//!    computations before the other's wait count (seen from the start), or those before the other's start (seen
//!    from the wait). A transfer without a wait starts and is awaited in one place, so nothing hides it.
//! 3. The rest is exposed. This is an estimate: it does not know when the other rank is ready.
//!    [`Track::exposed_times`](crate::trace::Track::exposed_times) gives the actual exposed time in a simulated or
//!    measured step.
//!
//! Follows `coll_exposed_communication_time` and `wait_exposed_communication_time` of PyTorch's
//! `torch/_inductor/comms.py` as their comments describe them, with suffix minima and a stack instead of one walk
//! for each.

use super::cell::{Cell, NONE, Role};
use crate::plan::Action;

/// The estimate for one start or wait.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct OverlapEstimate {
    /// The seconds of the transfer or collective.
    pub(super) communication: f64,
    /// The seconds of computation that run concurrently.
    pub(super) computation: f64,
}

impl OverlapEstimate {
    /// The seconds that no computation hides.
    pub(super) fn exposed(&self) -> f64 {
        (self.communication - self.computation).max(0.0)
    }

    /// The seconds that computation hides.
    pub(super) fn hidden(&self) -> f64 {
        self.communication.min(self.computation)
    }
}

/// The positions of a row's cells in an order, and the seconds computed before each position.
struct Timeline<'a> {
    cells: &'a [Cell],
    order: &'a [u32],
    position: Vec<usize>,
    before: Vec<f64>,
}

impl<'a> Timeline<'a> {
    fn new(cells: &'a [Cell], order: &'a [u32]) -> Self {
        let mut position = vec![0; cells.len()];
        let mut before = Vec::with_capacity(order.len() + 1);
        before.push(0.0);
        for (place, &cell) in order.iter().enumerate() {
            position[cell as usize] = place;
            before.push(before[place] + cells[cell as usize].seconds);
        }
        Self { cells, order, position, before }
    }

    /// The position at which a start is awaited: that of its wait, or its own.
    fn end(&self, start: u32) -> usize {
        match self.cells[start as usize].partner {
            NONE => self.position[start as usize],
            wait => self.position[wait as usize],
        }
    }

    fn between(&self, start: u32, end: usize) -> OverlapEstimate {
        let place = self.position[start as usize];
        let computation = if end > place { self.before[end] - self.before[place + 1] } else { 0.0 };
        OverlapEstimate { communication: self.cells[start as usize].comm, computation }
    }

    /// The starts, from the last to the first, each with the position up to which computation hides it: that of its
    /// wait, or of the wait of a later start if earlier.
    fn spans(&self) -> impl Iterator<Item = (u32, usize)> + '_ {
        // The earliest end among the starts visited so far, which all come later in the row.
        self.starts().rev().scan(usize::MAX, |first, start| {
            let end = self.end(start);
            let span = (start, end.min(*first));
            *first = end.min(*first);
            Some(span)
        })
    }

    fn starts(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.order.iter().copied().filter(|&cell| self.cells[cell as usize].role.starts())
    }
}

/// The estimates of all starts, by cell; zero for other cells.
pub(super) fn of_starts(cells: &[Cell], order: &[u32]) -> Vec<OverlapEstimate> {
    let timeline = Timeline::new(cells, order);
    let mut estimates = vec![OverlapEstimate::default(); cells.len()];
    timeline.spans().for_each(|(start, end)| estimates[start as usize] = timeline.between(start, end));
    estimates
}

/// The computations that hide each start, by cell: the first concurrent ones that cover its seconds, at most
/// `most`.
pub(super) fn hiding(cells: &[Cell], order: &[u32], most: usize) -> Vec<Vec<(Action, f64)>> {
    let timeline = Timeline::new(cells, order);
    let computes = |place: &usize| cells[order[*place] as usize].seconds > 0.0;
    let computing: Vec<usize> = (0..order.len()).filter(computes).collect();
    let mut hiding = vec![Vec::new(); cells.len()];
    for (start, end) in timeline.spans() {
        let mut left = cells[start as usize].comm;
        let first = computing.partition_point(|&place| place <= timeline.position[start as usize]);
        for &place in computing[first..].iter().take(most).take_while(|&&place| place < end) {
            if left <= 0.0 {
                break;
            }
            let Cell { action, seconds, .. } = cells[order[place] as usize];
            hiding[start as usize].push((action, seconds));
            left -= seconds;
        }
    }
    hiding
}

/// The estimates of all waits, by cell; zero for other cells.
pub(super) fn of_waits(cells: &[Cell], order: &[u32]) -> Vec<OverlapEstimate> {
    let timeline = Timeline::new(cells, order);
    let mut estimates = vec![OverlapEstimate::default(); cells.len()];
    // A stack of later starts. An entry that ends after its successor can never be the first to end, so it is
    // removed. So ends decrease towards the top, and the top is the nearest start that ends before this one.
    let mut later: Vec<u32> = Vec::new();
    for start in timeline.starts().rev() {
        let end = timeline.end(start);
        while later.last().is_some_and(|&other| timeline.end(other) >= end) {
            later.pop();
        }
        let inner = later.last().map_or(end, |&other| timeline.position[other as usize].min(end));
        let cell = &cells[start as usize];
        if cell.role == Role::Start && cell.partner != NONE {
            estimates[cell.partner as usize] = timeline.between(start, inner);
        }
        later.push(start);
    }
    estimates
}

#[cfg(test)]
mod tests {
    use super::super::cell;
    use super::*;
    use crate::cost::{LinkCost, LinkCosts, Profile, StageCost};
    use crate::plan::Plan;

    #[test]
    fn what_is_computed_up_to_another_wait_hides_a_start_and_before_another_start_a_wait() {
        let rank_0 = "0F0,0SEND_F0,0F1,0SEND_F1,0F2,0WAIT_SEND_F1,0F3,0WAIT_SEND_F0,0SEND_F2,0SEND_F3";
        let rank_1 = "1RECV_F0,1F0,1RECV_F1,1F1,1RECV_F2,1F2,1RECV_F3,1F3";
        let plan = Plan::from_csv("test", &format!("{rank_0}\n{rank_1}\n")).unwrap();
        let links = LinkCosts { default: LinkCost { latency: 2.5, bandwidth: None }, between: Vec::new() };
        let stage = StageCost { forward: 1.0, message_bytes: 1.0, ..StageCost::default() };
        let profile = Profile::new(vec![stage; 2], links).unwrap();
        let cells = cell::rows(&plan, &profile.costs(plan.placement()).unwrap()).swap_remove(0);
        let order: Vec<u32> = (0..cells.len() as u32).collect();
        let (starts, waits) = (of_starts(&cells, &order), of_waits(&cells, &order));
        let at = |start: &str| cells.iter().position(|cell| cell.action.to_string() == start).unwrap();
        let from_start = |start: &str| starts[at(start)];
        let from_wait = |start: &str| waits.get(cells[at(start)].partner as usize).copied();
        let exposure = |computation| OverlapEstimate { communication: 2.5, computation };
        // Send 0 starts; F1 and F2 run; then the rank waits for send 1, so F3 hides nothing of send 0.
        assert_eq!((from_start("0SEND_F0"), from_start("0SEND_F0").exposed()), (exposure(2.0), 0.5));
        // At its wait, send 0 has had the link from F1 on, until send 1 started.
        assert_eq!(from_wait("0SEND_F0"), Some(exposure(1.0)));
        assert_eq!((from_start("0SEND_F1"), from_wait("0SEND_F1")), (exposure(1.0), Some(exposure(1.0))));
        let hiding = hiding(&cells, &order, 16);
        let named = |start: &str| hiding[at(start)].iter().map(|(a, s)| format!("{a} {s}")).collect::<Vec<_>>();
        assert_eq!(
            (named("0SEND_F0"), named("0SEND_F1")),
            (vec!["0F1 1".into(), "0F2 1".into()], vec!["0F2 1".into()])
        );
        assert!(named("0SEND_F2").is_empty());
        // Without its own wait it is fully exposed.
        assert_eq!((from_start("0SEND_F2"), from_wait("0SEND_F2")), (exposure(0.0), None));
    }
}
