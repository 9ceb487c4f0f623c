//! What a rank can see in its own row: every task once, on the right rank, after what it needs there.
//!
//! Guarantees: after [`scan`] has passed, each pair of stage and microbatch has exactly the events that the plan
//! owes it, in a legal order on its rank. What may still be wrong needs two ranks to see.
//!
//! 1. A plan with fewer tasks than forwards due is refused before any table is made ([`refuse_short`]), so the
//!    table, one byte a pair, is never larger than the plan.
//! 2. Each row is read once, in order. A task looks at the bits of its own pair, and of its neighbour's where
//!    that lives on the same rank: a bit that should be there and is not is an unmet need, one that should not be
//!    there is a duplicate. Counters of live activations and received payloads go along.
//! 3. A wait ([`waits`]) comes after its start and before anything that uses what it waits for.
//! 4. At the end each pair must have exactly the bits that its stage owes.

mod complete;
mod refusals;
mod skips;
mod waits;

pub(super) use complete::refuse_short;

use super::CheckOptions;
use super::channels::{Part, Transfers};
use super::error::CheckError;
use crate::plan::edges::{Edges, Side, Slot};
use crate::plan::waits::Awaited;
use crate::plan::{Action, MicrobatchTask, Op, Plan, Task};

/// Events of one pair. `WHOLE` tells a `B` from an `I` and a `W`.
const F: u8 = 1;
const I: u8 = 2;
const W: u8 = 4;
const WHOLE: u8 = 8;
const RECEIVED_F: u8 = 16;
const RECEIVED_B: u8 = 32;
const SENT_F: u8 = 64;
const SENT_B: u8 = 128;

type Refusal = Box<CheckError>;

/// Reads every row once; returns the transfers of each rank in order.
pub(super) fn scan(plan: &Plan, edges: &Edges, options: &CheckOptions) -> Result<Transfers, Refusal> {
    let lowered = plan.is_lowered();
    let crosses = edges.slots().iter().any(|slot| slot.after == Side::OtherRank);
    let crosses = crosses || edges.skips().iter().any(|skip| skip.crosses);
    if let (false, true, Some(cap)) = (lowered, crosses, options.received_cap) {
        return Err(Box::new(CheckError::ReceivedCapUnlowered { cap }));
    }
    let (training, has_waits) = (plan.has_backward(), plan.has_waits());
    let mut scan = Scan {
        plan,
        edges,
        options,
        lowered,
        training,
        events: vec![0; edges.pairs()],
        skip_events: vec![0; edges.skip_pairs()],
        skip_waits: vec![0; edges.skip_pairs()],
        awaited: if has_waits { Awaited::new(plan, edges) } else { Awaited::default() },
        waits: vec![0; if has_waits { edges.pairs() } else { 0 }],
        shards: vec![Shard::default(); edges.slots().len()],
        weights: vec![0; edges.slots().len()],
        reduced: vec![Reduction::No; edges.slots().len()],
        transfers: Transfers::new(plan, edges, training),
        row: Row::default(),
    };
    for rank in 0..plan.ranks() {
        scan.row = Row { rank, ..Row::default() };
        scan.row()?;
    }
    scan.refuse_incomplete()?;
    scan.refuse_bare()?;
    Ok(scan.transfers)
}

/// Where the scan stands, and what its rank holds there.
#[derive(Clone, Copy, Debug)]
struct Row {
    rank: usize,
    step: usize,
    action: Action,
    live: usize,
    held: usize,
    /// Payloads sent whose wait is still to come.
    sent: usize,
}

impl Default for Row {
    fn default() -> Self {
        Self { rank: 0, step: 0, action: Action::Idle, live: 0, held: 0, sent: 0 }
    }
}

/// What has happened to a stage's parameters.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Shard {
    gathered: bool,
    /// Was it ever gathered or released?
    managed: bool,
    /// Did it compute while not gathered?
    bare: bool,
    /// Did it compute since it was gathered?
    used: bool,
    /// Was the gathering awaited in writing?
    awaited: bool,
}

/// How far the reduction of a stage's gradients has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reduction {
    No,
    Started,
    Awaited,
}

struct Scan<'a> {
    plan: &'a Plan,
    edges: &'a Edges,
    options: &'a CheckOptions,
    lowered: bool,
    training: bool,
    events: Vec<u8>,
    /// Sends and receives of every value that goes past a neighbour.
    skip_events: Vec<u8>,
    skip_waits: Vec<u8>,
    /// Which starts have waits of their own.
    awaited: Awaited,
    /// The waits of a pair that have come, as the bits of what they wait for; empty in a plan without waits.
    waits: Vec<u8>,
    shards: Vec<Shard>,
    /// Weight gradients done, by stage.
    weights: Vec<usize>,
    reduced: Vec<Reduction>,
    transfers: Transfers,
    row: Row,
}

impl Scan<'_> {
    fn row(&mut self) -> Result<(), Refusal> {
        let row = self.plan.row(self.row.rank);
        for (step, &action) in row.iter().enumerate() {
            self.row.step = step;
            self.row.action = action;
            match action {
                Action::Idle => {}
                Action::Single(task) => self.task(task)?,
                Action::Overlap(first, second) => {
                    if !fusible(first, second) {
                        return Err(self.refuse(|rank, step, action, grid| CheckError::NotFusible {
                            rank,
                            step,
                            action,
                            grid,
                        }));
                    }
                    self.task(first.into())?;
                    self.task(second.into())?;
                }
            }
        }
        self.transfers.end_row();
        Ok(())
    }

    #[inline]
    fn task(&mut self, task: Task) -> Result<(), Refusal> {
        let Some(slot) = self.edges.find(task.stage()) else { return Err(self.no_such_stage()) };
        let at = self.edges.slots()[slot];
        if at.rank != self.row.rank {
            return Err(self.refuse(|rank, step, action, grid| CheckError::WrongRank {
                rank,
                step,
                action,
                placed: at.rank,
                grid,
            }));
        }
        let Some(task) = task.of_microbatch() else { return self.whole_stage(slot, at, task) };
        if task.microbatch() >= at.microbatches {
            let microbatches = at.microbatches;
            return Err(self.refuse(|rank, step, action, grid| CheckError::NoSuchMicrobatch {
                rank,
                step,
                action,
                microbatches,
                grid,
            }));
        }
        let pair = at.base + task.microbatch();
        if task.is_skip() {
            return self.skip_transfer(pair, task);
        }
        match task.op() {
            op if op.is_compute() => self.compute(slot, at, pair, task),
            op if op.is_transfer() => self.transfer(slot, at, pair, task),
            _ => self.wait(slot, at, pair, task),
        }
    }

    #[inline]
    fn compute(&mut self, slot: usize, at: Slot, pair: usize, task: MicrobatchTask) -> Result<(), Refusal> {
        let events = self.events[pair];
        self.refuse_again(events, task)?;
        self.shards[slot].bare |= !self.shards[slot].gathered;
        self.shards[slot].used = true;
        if self.shards[slot].managed && !self.shards[slot].gathered {
            return Err(self.sharded(task.into()));
        }
        match task.op() {
            Op::Forward => {
                match at.before {
                    Side::SameRank => self.require(self.events[pair - at.microbatches] & F, task, Op::Forward, -1)?,
                    Side::OtherRank if self.lowered => {
                        self.require(events & RECEIVED_F, task, Op::ReceiveForward, 0)?;
                        self.row.held -= 1;
                    }
                    _ => {}
                }
                self.use_skips(slot, task)?;
                self.events[pair] |= F;
                if self.training {
                    self.hold_activation()?;
                }
            }
            Op::BackwardWeight => {
                self.require(events & I, task, Op::BackwardInput, 0)?;
                self.events[pair] |= W;
                self.release(slot);
            }
            _ => return self.backward(slot, at, pair, task),
        }
        Ok(())
    }

    /// `B` or `I`.
    #[inline]
    fn backward(&mut self, slot: usize, at: Slot, pair: usize, task: MicrobatchTask) -> Result<(), Refusal> {
        let events = self.events[pair];
        self.require(events & F, task, Op::Forward, 0)?;
        match at.after {
            Side::SameRank => self.require(self.events[pair + at.microbatches] & I, task, Op::Backward, 1)?,
            Side::OtherRank if self.lowered => {
                self.require(events & RECEIVED_B, task, Op::ReceiveBackward, 0)?;
                self.row.held -= 1;
            }
            _ => {}
        }
        self.use_skips(slot, task)?;
        if task.op() == Op::Backward {
            self.events[pair] |= I | W | WHOLE;
            self.release(slot);
        } else {
            self.events[pair] |= I;
        }
        Ok(())
    }

    #[inline]
    fn transfer(&mut self, slot: usize, at: Slot, pair: usize, task: MicrobatchTask) -> Result<(), Refusal> {
        let events = self.events[pair];
        let (side, event, own) = match task.op() {
            Op::SendForward => (at.after, SENT_F, Some((F, Op::Forward))),
            Op::ReceiveForward => (at.before, RECEIVED_F, None),
            Op::SendBackward => (at.before, SENT_B, Some((I, Op::Backward))),
            _ => (at.after, RECEIVED_B, None),
        };
        if side != Side::OtherRank {
            return Err(self.needless(task));
        }
        self.refuse_twice(events & event, task)?;
        match own {
            Some((made, op)) => self.require(events & made, task, op, 0)?,
            None => self.hold_received()?,
        }
        self.events[pair] |= event;
        let part = if self.awaited.at(self.row.rank, self.row.step) { Part::Start } else { Part::Whole };
        if part == Part::Start && own.is_some() {
            self.hold_sent()?;
        }
        self.transfers.push(slot, at.microbatches, pair, task.op(), part);
        Ok(())
    }

    fn whole_stage(&mut self, slot: usize, at: Slot, task: Task) -> Result<(), Refusal> {
        let shard = &mut self.shards[slot];
        match task.op() {
            Op::Unshard if shard.gathered => {
                return Err(self.refuse(|rank, step, action, grid| CheckError::UnshardedTwice {
                    rank,
                    step,
                    action,
                    grid,
                }));
            }
            Op::Unshard => *shard = Shard { gathered: true, managed: true, used: false, awaited: false, ..*shard },
            Op::Reshard if !shard.gathered => return Err(self.sharded(task)),
            Op::Reshard => shard.gathered = false,
            Op::WaitUnshard => return self.wait_unshard(slot, task),
            Op::WaitReduceGrad => return self.wait_reduction(slot, task),
            _ => {
                let (done, microbatches) = (self.weights[slot], at.microbatches);
                self.refuse_twice(u8::from(self.reduced[slot] != Reduction::No), task)?;
                if done < microbatches {
                    return Err(self.refuse(|rank, step, action, grid| CheckError::ReducedEarly {
                        rank,
                        step,
                        action,
                        done,
                        microbatches,
                        grid,
                    }));
                }
                self.reduced[slot] = Reduction::Started;
            }
        }
        Ok(())
    }

    #[inline]
    fn hold_activation(&mut self) -> Result<(), Refusal> {
        self.row.live += 1;
        let Some(cap) = self.options.activation_cap else { return Ok(()) };
        let live = self.row.live as f64 * (self.plan.ranks() as f64 / self.plan.stages() as f64);
        if live > cap {
            return Err(self.refuse(|rank, step, action, grid| CheckError::ActivationCap {
                rank,
                step,
                action,
                live,
                cap,
                grid,
            }));
        }
        Ok(())
    }

    /// A weight gradient is done: its activation goes.
    #[inline]
    fn release(&mut self, slot: usize) {
        self.row.live -= 1;
        self.weights[slot] += 1;
    }

    #[inline]
    fn hold_received(&mut self) -> Result<(), Refusal> {
        self.row.held += 1;
        let held = self.row.held;
        match self.options.received_cap {
            Some(cap) if held > cap => Err(self.refuse(|rank, step, action, grid| CheckError::ReceivedCap {
                rank,
                step,
                action,
                held,
                cap,
                grid,
            })),
            _ => Ok(()),
        }
    }

    #[inline]
    fn refuse_twice(&self, seen: u8, task: impl Into<Task>) -> Result<(), Refusal> {
        if seen == 0 { Ok(()) } else { Err(self.duplicate(task.into())) }
    }

    /// No computation runs twice, and no backward in both forms.
    #[inline]
    fn refuse_again(&self, events: u8, task: MicrobatchTask) -> Result<(), Refusal> {
        match task.op() {
            Op::Forward => self.refuse_twice(events & F, task),
            Op::Backward if events & (I | WHOLE) == I => Err(self.both_backwards(task, Op::BackwardInput)),
            Op::Backward => self.refuse_twice(events & WHOLE, task),
            _ if events & WHOLE != 0 => Err(self.both_backwards(task, Op::Backward)),
            Op::BackwardInput => self.refuse_twice(events & I, task),
            _ => self.refuse_twice(events & W, task),
        }
    }

    /// The bit of what a task needs must be set: `op` of the stage `offset` further on, same microbatch.
    #[inline]
    fn require(&self, seen: u8, task: MicrobatchTask, op: Op, offset: isize) -> Result<(), Refusal> {
        if seen != 0 { Ok(()) } else { Err(self.unmet(task, op, offset)) }
    }
}

/// A forward and a backward, and not of the same thing: the two may be interleaved.
fn fusible(first: MicrobatchTask, second: MicrobatchTask) -> bool {
    let same = first.stage() == second.stage() && first.microbatch() == second.microbatch();
    first.op() == Op::Forward && second.op().gives_input_gradient() && !same
}
