//! Exposed communication: the part of each transfer, and of each exchange between data-parallel replicas, for which its rank
//! stands still.
//!
//! Guarantees: every transfer and exchange of a track is told of once; one that computation hides wholly has 0; nothing
//! that a rank waits for because its neighbour has not computed it yet counts.
//!
//! 1. A receive can begin when the neighbour has what is sent: its event counts from there on. In a measured track the
//!    event is the rank's wait, in a predicted one the transfer; the part before that is the neighbour's lateness.
//! 2. A send's event counts whole: in a measured track it is the time that the send itself takes.
//! 3. What the same rank computes meanwhile is taken off. What is left is exposed.
//! 4. `UNSHARD` and `REDUCE_GRAD` go on beside other actions, transfers among them, which their rank may stand waiting for
//!    anyway. So only the time counts in which it waits for them: their `WAIT_UNSHARD` and `WAIT_REDUCE_GRAD`. A
//!    measured track tells these wherever a rank waited. In a track without any, a rank waits for its reductions
//!    once it has computed everything, and for parameters until its stage computes.
//!
//! In a track of several steps, what a receive waits for is the last such product that was begun before it ended.

use super::event::{Event, Track};
use super::kind::is_compute;
use crate::plan::{Op, StageId, Task};
use std::collections::HashMap;

/// What one transfer, or one exchange between replicas, cost its rank.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ExposedTime {
    /// The event: a send, a receive, `UNSHARD` or `REDUCE_GRAD`.
    pub event: Event,
    /// Which transfer.
    pub task: Task,
    /// Seconds of the event in which the neighbour had nothing to send yet.
    pub early: f64,
    /// Seconds in which the transfer ran, or was awaited, and its rank computed nothing.
    pub exposed: f64,
}

/// What a receive waits for: a stage's product for a microbatch, forward or backward.
type Product = (StageId, Option<usize>, bool);

/// The exposed part of each transfer and exchange, in the order of the track's events.
///
/// ```
/// use burn_pipeline_plan::plan::{Action, Op, Task};
/// use burn_pipeline_plan::trace::{Event, Track, exposed_times};
/// let event = |rank, task, start, end| Event { rank, action: Action::Single(task), start, end };
/// let (made, got) = (Task::new(0, Op::Forward, 0), Task::new(1, Op::ReceiveForward, 0));
/// // Rank 1 waits from the start; rank 0 is ready after 2 s, and the message takes one more.
/// let track = Track { name: "measured".into(), ranks: 2, events: vec![event(0, made, 0.0, 2.0), event(1, got, 0.0, 3.0)] };
/// let [wait] = exposed_times(&track)[..] else { panic!() };
/// assert_eq!((wait.early, wait.exposed), (2.0, 1.0));
/// ```
pub fn exposed_times(track: &Track) -> Vec<ExposedTime> {
    let mut products: HashMap<Product, Vec<(f64, f64)>> = HashMap::new();
    let mut computing: Vec<Vec<(f64, f64)>> = vec![Vec::new(); track.rows()];
    for event in &track.events {
        for product in event.action.tasks().filter_map(product_of) {
            products.entry(product).or_default().push((event.start, event.end));
        }
        if is_compute(event) {
            computing[event.rank].push((event.start, event.end));
        }
    }
    let by_start = |spans: &mut Vec<(f64, f64)>| spans.sort_by(|a, b| a.0.total_cmp(&b.0));
    products.values_mut().for_each(by_start);
    computing.iter_mut().for_each(by_start);
    let waits = Waits::of(track);
    let exposed_part = |event: &Event| {
        let busy = &computing[event.rank];
        if let Some(task) = event.action.tasks().find(|task| is_exchange(task.op())) {
            let exposed = waits.exposed(event, task, busy);
            return Some(ExposedTime { event: *event, task, early: 0.0, exposed });
        }
        let task = event.action.tasks().find(|task| is_transfer(task.op()))?;
        let ready = awaited(task).and_then(|product| ready(products.get(&product)?, event.end));
        let from = ready.unwrap_or(event.start).clamp(event.start, event.end);
        let exposed = event.end - from - overlap(busy, from, event.end);
        Some(ExposedTime { event: *event, task, early: from - event.start, exposed: exposed.max(0.0) })
    };
    track.events.iter().filter_map(exposed_part).collect()
}

/// Is it one of what data-parallel replicas exchange?
fn is_exchange(op: Op) -> bool {
    matches!(op, Op::Unshard | Op::ReduceGrad)
}

/// When ranks waited for what they exchange.
struct Waits {
    /// By rank and by what was waited for, in order of time.
    told: HashMap<(usize, Task), Vec<(f64, f64)>>,
}

impl Waits {
    fn of(track: &Track) -> Self {
        let mut told: HashMap<(usize, Task), Vec<(f64, f64)>> = HashMap::new();
        for event in &track.events {
            for awaited in event.action.tasks().filter_map(Task::awaits).filter(|task| is_exchange(task.op())) {
                told.entry((event.rank, awaited)).or_default().push((event.start, event.end));
            }
        }
        told.values_mut().for_each(|spans| spans.sort_by(|a, b| a.0.total_cmp(&b.0)));
        Self { told }
    }

    /// The part of an exchange for which its rank stood still; `busy` is when it computed.
    fn exposed(&self, event: &Event, task: Task, busy: &[(f64, f64)]) -> f64 {
        let (start, end) = (event.start, event.end);
        if !self.told.is_empty() {
            return self.told.get(&(event.rank, task)).map_or(0.0, |waits| overlap(waits, start, end));
        }
        let last = if task.op() == Op::ReduceGrad { busy.last() } else { before(busy, end) };
        let from = last.map_or(start, |&(_, over)| over.clamp(start, end));
        end - from
    }
}

/// The last span that began before `end`.
fn before(spans: &[(f64, f64)], end: f64) -> Option<&(f64, f64)> {
    let begun = spans.partition_point(|&(start, _)| start < end);
    begun.checked_sub(1).map(|last| &spans[last])
}

fn is_transfer(op: Op) -> bool {
    matches!(op, Op::SendForward | Op::SendBackward | Op::ReceiveForward | Op::ReceiveBackward)
}

/// What a task makes that other ranks may wait for.
fn product_of(task: Task) -> Option<Product> {
    match task.op() {
        Op::Forward => Some((task.stage(), task.microbatch(), true)),
        Op::Backward | Op::BackwardInput => Some((task.stage(), task.microbatch(), false)),
        _ => None,
    }
}

/// What a receive waits for.
fn awaited(task: Task) -> Option<Product> {
    let stage = task.stage();
    let next = || StageId::in_replica(stage.replica(), stage.index() + 1);
    match task.op() {
        Op::ReceiveForward => Some((task.skip_peer().or(stage.previous())?, task.microbatch(), true)),
        Op::ReceiveBackward => Some((task.skip_peer().unwrap_or_else(next), task.microbatch(), false)),
        _ => None,
    }
}

/// When the last of these spans that began before `end` was over.
fn ready(spans: &[(f64, f64)], end: f64) -> Option<f64> {
    before(spans, end).map(|&(_, over)| over)
}

/// How much of `from..to` lies in spans that are sorted and do not overlap each other.
fn overlap(spans: &[(f64, f64)], from: f64, to: f64) -> f64 {
    let first = spans.partition_point(|&(_, end)| end <= from);
    let within = spans[first..].iter().take_while(|&&(start, _)| start < to);
    within.map(|&(start, end)| (end.min(to) - start.max(from)).max(0.0)).sum()
}
