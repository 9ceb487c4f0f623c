//! Exposed communication: the time that each transfer, and each exchange between data-parallel replicas, kept its rank
//! waiting.
//!
//! Guarantees: one entry for every transfer and exchange of a track. It is 0 if computation hides the transfer wholly.
//! Time before the neighbour has computed the value does not count.
//!
//! 1. A receive's event counts from the moment at which the neighbour has computed the value. The time before that is
//!    [`ExposedTime::early`]. (In a measured track the event is the rank's wait, in a predicted track the transfer.)
//! 2. A send's event counts whole: in a measured track it is the duration of the send itself.
//! 3. Time in which the same rank computes is subtracted. The rest is exposed.
//! 4. `UNSHARD` and `REDUCE_GRAD` run beside other actions, for which the rank may wait anyway. So only the waits for
//!    them count: `WAIT_UNSHARD` and `WAIT_REDUCE_GRAD`, which a measured track has wherever a rank waited. In a track
//!    without such waits, a rank is assumed to wait for reductions after its last computation, and for parameters until
//!    its stage computes.
//!
//! In a track of several steps, a receive belongs to the last matching value whose computation began before the receive
//! ended.

use super::event::{Event, Track};
use super::kind::is_compute;
use crate::plan::{Op, StageId, Task};
use std::collections::HashMap;
use std::hash::Hash;

/// The time that one transfer, or one exchange between replicas, kept its rank waiting.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ExposedTime {
    /// The event: a send, a receive, `UNSHARD` or `REDUCE_GRAD`.
    pub event: Event,
    /// The transfer or exchange: the task of the event.
    pub task: Task,
    /// Seconds of the event before the neighbour had computed the value.
    pub early: f64,
    /// Seconds in which the transfer ran, or its rank waited for it, while the rank did not compute.
    pub exposed: f64,
}

/// A computed value: stage, microbatch, and whether it is an output or a gradient.
pub(crate) type Product = (StageId, Option<usize>, bool);

impl Track {
    /// The exposed part of each transfer and exchange, in the order of the track's events.
    ///
    /// ```
    /// use burn_pipeline_plan::plan::{Action, Op, Task};
    /// use burn_pipeline_plan::trace::{Event, Track};
    /// let event = |rank, task, start, end| Event { rank, action: Action::Single(task), start, end };
    /// let (made, got) = (Task::new(0, Op::Forward, 0), Task::new(1, Op::ReceiveForward, 0));
    /// // Rank 1 waits from the start. Rank 0 is ready after 2 s, and the message takes 1 s more.
    /// let events = vec![event(0, made, 0.0, 2.0), event(1, got, 0.0, 3.0)];
    /// let track = Track { name: "measured".into(), ranks: 2, events };
    /// let [wait] = track.exposed_times()[..] else { panic!() };
    /// assert_eq!((wait.early, wait.exposed), (2.0, 1.0));
    /// ```
    pub fn exposed_times(&self) -> Vec<ExposedTime> {
        let products = spans_by(self, |event| event.action.tasks().filter_map(product_of));
        let computing = spans_by(self, |event| is_compute(event).then_some(event.rank).into_iter());
        let waits = waits_of(self);
        let exposed_part = |event: &Event| {
            let busy = computing.get(&event.rank).map_or(&[][..], Vec::as_slice);
            if let Some(task) = event.action.tasks().find(|task| is_exchange(task.op())) {
                let exposed = exposed(&waits, event, task, busy);
                return Some(ExposedTime { event: *event, task, early: 0.0, exposed });
            }
            let task = event.action.tasks().find(|task| task.op().is_transfer())?;
            let ready = awaited(task).and_then(|product| before(products.get(&product)?, event.end));
            let from = within(ready.map_or(event.start, |&(_, over)| over), event);
            let exposed = event.end - from - overlap(busy, from, event.end);
            Some(ExposedTime { event: *event, task, early: from - event.start, exposed: exposed.max(0.0) })
        };
        self.events.iter().filter_map(exposed_part).collect()
    }
}

/// Starts and ends of events by key, in order of time.
pub(crate) type Spans<K> = HashMap<K, Vec<(f64, f64)>>;

/// The starts and ends of a track's events by the keys of each.
pub(crate) fn spans_by<K: Eq + Hash, I: Iterator<Item = K>>(track: &Track, keys: impl Fn(&Event) -> I) -> Spans<K> {
    let mut spans = Spans::new();
    for event in &track.events {
        keys(event).for_each(|key| spans.entry(key).or_default().push((event.start, event.end)));
    }
    spans.values_mut().for_each(|spans| spans.sort_by(|a, b| a.0.total_cmp(&b.0)));
    spans
}

/// Returns true if it is an exchange between data-parallel replicas.
fn is_exchange(op: Op) -> bool {
    matches!(op, Op::Unshard | Op::ReduceGrad)
}

/// The waits for exchanges between replicas.
fn waits_of(track: &Track) -> Spans<(usize, Task)> {
    spans_by(track, |event| {
        let (rank, exchanges) = (event.rank, event.action.tasks().filter_map(Task::awaits));
        exchanges.filter(|task| is_exchange(task.op())).map(move |task| (rank, task))
    })
}

/// The time that an exchange kept its rank waiting; `busy` is when the rank computed.
fn exposed(waits: &Spans<(usize, Task)>, event: &Event, task: Task, busy: &[(f64, f64)]) -> f64 {
    let (start, end) = (event.start, event.end);
    if !waits.is_empty() {
        return waits.get(&(event.rank, task)).map_or(0.0, |waits| overlap(waits, start, end));
    }
    let last = if task.op() == Op::ReduceGrad { busy.last() } else { before(busy, end) };
    end - last.map_or(start, |&(_, over)| within(over, event))
}

/// The time in the event that is next to this one. (`clamp` panics if an event ends before it starts, or at NaN.)
fn within(time: f64, event: &Event) -> f64 {
    time.max(event.start).min(event.end)
}

/// The last span that began before `end`.
fn before(spans: &[(f64, f64)], end: f64) -> Option<&(f64, f64)> {
    let begun = spans.partition_point(|&(start, _)| start < end);
    begun.checked_sub(1).map(|last| &spans[last])
}

/// The value that a task computes, for which other ranks may wait.
pub(crate) fn product_of(task: Task) -> Option<Product> {
    match task.op() {
        Op::Forward => Some((task.stage(), task.microbatch(), true)),
        Op::Backward | Op::BackwardInput => Some((task.stage(), task.microbatch(), false)),
        _ => None,
    }
}

/// The value that a receive waits for.
pub(crate) fn awaited(task: Task) -> Option<Product> {
    let receives = task.op().is_transfer() && !task.op().is_send();
    Some((task.peer().filter(|_| receives)?, task.microbatch(), task.op() == Op::ReceiveForward))
}

/// Seconds of `from..to` that these spans cover. The spans are sorted and do not overlap each other.
fn overlap(spans: &[(f64, f64)], from: f64, to: f64) -> f64 {
    let first = spans.partition_point(|&(_, end)| end <= from);
    let within = spans[first..].iter().take_while(|&&(start, _)| start < to);
    within.map(|&(start, end)| (end.min(to) - start.max(from)).max(0.0)).sum()
}
