//! Reductions run concurrently with the rest of their rows. Shown by the order of events, with ranks that wait
//! until their peers have sent the earlier pieces.

use super::{RATE, replicated, weights};
use crate::cases::{Case, Text};
use crate::watchdog::within;
use burn::tensor::Device;
use burn_pipeline::link::{Activity, Header, Link, LinkError, Message, MessageKind, ThreadLink, Threads};
use burn_pipeline::plan::{Op, Plan, StageId, Task};
use burn_pipeline::trace::Event;
use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

/// A piece sent between replicas: by which rank, of which stage, and whether it was a sum.
type Piece = (usize, StageId, bool);

/// The pieces sent between replicas so far.
#[derive(Clone, Default)]
struct Sent(Arc<(Mutex<HashSet<Piece>>, Condvar)>);

impl Sent {
    fn note(&self, what: Piece) {
        self.0.0.lock().unwrap().insert(what);
        self.0.1.notify_all();
    }

    fn wait_for(&self, what: Piece) {
        let sent = self.0.0.lock().unwrap();
        drop(self.0.1.wait_while(sent, |sent| !sent.contains(&what)).unwrap());
    }
}

/// A link that delays two of its rank's tasks until the peer in the other replica has sent its pieces, and its
/// sums. The rank does not see these sums before the first of the two tasks is done.
struct HeldBack {
    link: ThreadLink,
    sent: Sent,
    reduction: Reduction,
    /// Whether the first task has begun, and whether it is over.
    first: (bool, bool),
}

impl HeldBack {
    fn hides(&self, header: Header) -> bool {
        !self.first.1 && matches!(header.kind, MessageKind::ReplicaSum)
    }
}

impl Link for HeldBack {
    burn_pipeline::forward_link!(link: rank, ranks, monitor, to_device, receive);
    burn_pipeline::forward_link!(link: all_gather, abort);

    fn probe(&mut self, from: &[usize], deadline: Instant) -> Result<Option<(usize, Header)>, LinkError> {
        let mut from = from.to_vec();
        while !from.is_empty() {
            match self.link.probe(&from, deadline)? {
                Some((rank, header)) if self.hides(header) => from.retain(|other| *other != rank),
                reported => return Ok(reported),
            }
        }
        Ok(None)
    }

    fn set_activity(&mut self, activity: Activity) {
        let peer = self.rank() ^ 1;
        let Reduction { stage, first, last } = self.reduction;
        match activity {
            Activity::Task(task) if task == first => {
                self.sent.wait_for((peer, stage, false));
                self.first.0 = true;
            }
            Activity::Task(task) => {
                self.first.1 = self.first.0;
                if task == last {
                    self.sent.wait_for((peer, stage, true));
                }
            }
            _ => {}
        }
        self.link.set_activity(activity);
    }

    fn send(&mut self, to: usize, message: Message, deadline: Instant) -> Result<(), LinkError> {
        let header = message.header;
        self.link.send(to, message, deadline)?;
        if let MessageKind::ReplicaGradient | MessageKind::ReplicaSum = header.kind {
            let summed = matches!(header.kind, MessageKind::ReplicaSum);
            self.sent.note((self.rank(), header.stage, summed));
        }
        Ok(())
    }
}

/// A link that cannot tell what has arrived.
struct Blind {
    link: ThreadLink,
}

impl Link for Blind {
    burn_pipeline::forward_link!(link: rank, ranks, monitor, to_device, set_activity, send, receive, all_gather, abort);
}

/// The first stage that a row reduces, and the first and the last task that it computes after that.
#[derive(Clone, Copy, Debug)]
struct Reduction {
    stage: StageId,
    first: Task,
    last: Task,
}

fn reduction(plan: &Plan, rank: usize) -> Reduction {
    let tasks: Vec<Task> = plan.tasks(rank).collect();
    let at = tasks.iter().position(|task| task.op() == Op::ReduceGrad).unwrap();
    let after: Vec<Task> = tasks[at..].iter().copied().filter(|task| task.op().is_compute()).collect();
    assert!(after.len() > 1, "rank {rank} computes after its first reduction");
    Reduction { stage: tasks[at].stage(), first: after[0], last: after[after.len() - 1] }
}

/// One step of two replicas of two ranks with two chunks: every rank's events and weights.
fn step(link: impl Fn(usize, &Plan) -> Box<dyn Link> + Sync) -> Vec<(Vec<Event>, Vec<Vec<f32>>)> {
    let case = Text::new(16);
    let builder = replicated::<Text>(("Interleaved1F1B", 2), 4, 2);
    let plan = builder.clone().build().unwrap().plan(4).unwrap();
    std::thread::scope(|scope| {
        let rank = |rank: usize| {
            let (builder, batch, link) = (builder.clone(), case.batch(), link(rank, plan.plan()));
            scope.spawn(move || {
                let mut pipeline = builder.build_rank(link).unwrap();
                let report = pipeline.step(batch, RATE).unwrap();
                let events = report.timeline.events.into_iter().filter(|event| event.rank == rank).collect();
                (events, weights(&mut pipeline))
            })
        };
        let ranks: Vec<_> = (0..4).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn event(events: &[Event], task: Task) -> Option<Event> {
    events.iter().copied().find(|event| event.action.tasks().any(|other| other == task))
}

/// The weights that every rank should have after one step.
fn expected() -> Vec<Vec<f32>> {
    let mut pipeline = replicated::<Text>(("Interleaved1F1B", 2), 4, 2).build().unwrap();
    pipeline.step(Text::new(16).batch(), RATE).unwrap();
    weights(&mut pipeline)
}

#[test]
fn a_reduction_starts_and_ends_beside_what_its_row_still_computes() {
    within(120, "a step of ranks that are held back", || {
        let (threads, sent) = (Threads::new(4), Sent::default());
        let reductions: Mutex<Vec<(usize, Reduction)>> = Mutex::default();
        let ranks = step(|rank, plan| {
            let reduction = reduction(plan, rank / 2);
            reductions.lock().unwrap().push((rank, reduction));
            let link = threads.link(rank, Device::flex());
            Box::new(HeldBack { link, sent: sent.clone(), reduction, first: (false, false) })
        });
        for (rank, Reduction { stage, first, .. }) in reductions.into_inner().unwrap() {
            let (events, weights) = &ranks[rank];
            let of = |op, stage| event(events, Task::whole_stage(stage, op));
            let (reduced, beside) = (of(Op::ReduceGrad, stage).unwrap(), event(events, first).unwrap());
            assert!(reduced.start <= beside.start && beside.end <= reduced.end, "rank {rank}: {reduced:?}, {beside:?}");
            // It is over before the row's last reduction begins, and nothing waited for it.
            let other = events
                .iter()
                .find(|event| event.action.tasks().any(|task| task.op() == Op::ReduceGrad && task.stage() != stage));
            assert!(reduced.end <= other.unwrap().start, "rank {rank}: {reduced:?}, {other:?}");
            assert_eq!(of(Op::WaitReduceGrad, stage), None, "rank {rank}");
            assert_eq!(weights, &expected(), "rank {rank}");
        }
    });
}

#[test]
fn on_a_link_that_cannot_tell_what_has_come_the_same_sums_are_waited_for_after_the_row() {
    within(120, "a step over links that cannot tell", || {
        let threads = Threads::new(4);
        let ranks = step(|rank, _| Box::new(Blind { link: threads.link(rank, Device::flex()) }));
        for (rank, (events, weights)) in ranks.iter().enumerate() {
            let computed = events.iter().filter(|event| event.action.tasks().any(|task| task.op().is_compute()));
            let last = computed.map(|event| event.end).fold(0.0, f64::max);
            let reduced: Vec<&Event> =
                events.iter().filter(|event| event.action.tasks().any(|task| task.op() == Op::ReduceGrad)).collect();
            assert_eq!(reduced.len(), 2, "rank {rank}");
            assert!(reduced.iter().all(|event| event.end >= last), "rank {rank}: {reduced:?} until {last}");
            // The reported exposed time is the time spent waiting.
            let waited: f64 = events
                .iter()
                .filter(|event| event.action.tasks().any(|task| task.op() == Op::WaitReduceGrad))
                .map(|event| event.end - event.start)
                .sum();
            let track = burn_pipeline::trace::Track { name: String::new(), ranks: 4, events: events.clone() };
            let reported = track.exposed_times().into_iter().filter(|part| part.task.op() == Op::ReduceGrad);
            let reported: f64 = reported.map(|part| part.exposed).sum();
            assert!(waited > 0.0 && (reported - waited).abs() < 1e-9, "rank {rank}: {reported} of {waited}");
            assert_eq!(weights, &expected(), "rank {rank}");
        }
    });
}
