//! Inserts waits of sends, receives and collectives as separate cells.
//!
//! ```text
//! before   rank 0: 0F0 0SEND_F0 0RECV_B0 0B0
//! after    rank 0: 0F0 0SEND_F0 0RECV_B0 0WAIT_RECV_B0 0B0 0WAIT_SEND_F0
//! ```
//!
//! Guarantees: linear time; no other cell moves; a start that has a wait keeps it, so the pass is idempotent. A
//! plan that passes [`check`](crate::plan::Plan::check) still passes with its waits under the same transport: a
//! start with a wait blocks its rank later than one without, never sooner. [`WaitOptions::pytorch`] gives the cells
//! of PyTorch 2.15's `_add_wait_send` and `_add_reduce_grad`; with [`outstanding`](WaitOptions), the cells of
//! `max_outstanding_sends` where that awaits the oldest send, as it mostly does.
//!
//! The documentation of [`Plan::with_waits`] lists the places. A start with its wait *at once* acts like a start alone
//! under a blocking transport. A *late* wait of `SEND_F` comes after the reply, since the peer has computed that from
//! the sent value; reductions wait for each other, so that one runs at a time.

use crate::plan::edges::Edges;
use crate::plan::waits::Awaited;
use crate::plan::{Action, Op, Plan, StageId, Task};
use std::collections::{HashMap, HashSet, VecDeque};
use std::num::NonZeroUsize;

/// Where the waits of one kind of start go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Placing {
    /// Nowhere: no wait is inserted.
    #[default]
    Implicit,
    /// Right after the start.
    AtOnce,
    /// As late as the use allows; see [`Plan::with_waits`].
    Late,
}

/// Where waits go, by kind of start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WaitOptions {
    /// Waits of `SEND_F` and `SEND_B`.
    pub sends: Placing,
    /// Waits of `RECV_F` and `RECV_B`.
    pub receives: Placing,
    /// Waits of `UNSHARD`.
    pub unshards: Placing,
    /// Waits of `REDUCE_GRAD`.
    pub reductions: Placing,
    /// The most outstanding sends of a rank if they are awaited late: before one more, the oldest is awaited, which
    /// frees its payload. PyTorch's `max_outstanding_sends`.
    pub outstanding: Option<NonZeroUsize>,
    /// If true, transfers along skip edges get waits like those between neighbours; otherwise they get none.
    pub skips: bool,
}

impl WaitOptions {
    /// The same place for all kinds.
    pub fn all(placing: Placing) -> Self {
        Self {
            sends: placing,
            receives: placing,
            unshards: placing,
            reductions: placing,
            outstanding: None,
            skips: true,
        }
    }

    /// The waits of PyTorch 2.15: sends late, reductions at once, none for the rest.
    pub fn pytorch() -> Self {
        Self { sends: Placing::Late, reductions: Placing::AtOnce, ..Self::default() }
    }

    fn of(&self, start: Op) -> Placing {
        match start {
            Op::SendForward | Op::SendBackward => self.sends,
            Op::ReceiveForward | Op::ReceiveBackward => self.receives,
            Op::Unshard => self.unshards,
            Op::ReduceGrad => self.reductions,
            _ => Placing::Implicit,
        }
    }
}

impl Plan {
    /// Inserts a wait for each start without one, in the place that the options give for its kind:
    ///
    /// - [`Placing::AtOnce`]: right after the start;
    /// - [`Placing::Late`]: a `SEND_F` after the computation that uses the gradient of the sent value, a `SEND_B` (and
    ///   a `SEND_F` of a stage without a backward) at the end of the row, a receive or `UNSHARD` before the first use
    ///   of the result, a `REDUCE_GRAD` before the rank's next one or at the end of the row.
    ///
    /// In an unlowered plan only reductions and `UNSHARD` can get waits; [`Plan::with_transfers`] then gives these
    /// waits a turn, as PyTorch does.
    ///
    /// ```
    /// use burn_pipeline_plan::{pass, plan::Plan};
    /// let plan = Plan::from_csv("mine", "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n")?;
    /// let waits = plan.with_waits(&pass::WaitOptions::all(pass::Placing::Late));
    /// let first = "0F0,0SEND_F0,0RECV_B0,0WAIT_RECV_B0,0B0,0WAIT_SEND_F0";
    /// let second = "1RECV_F0,1WAIT_RECV_F0,1F0,1B0,1SEND_B0,1WAIT_SEND_B0";
    /// assert_eq!(waits.to_csv(), format!("{first}\n{second}\n"));
    /// # Ok::<(), burn_pipeline_plan::plan::PlanError>(())
    /// ```
    pub fn with_waits(&self, options: &WaitOptions) -> Plan {
        let awaited = Awaited::new(self, &Edges::new(self));
        let row = |(rank, row): (usize, &Vec<Action>)| {
            let most = options.outstanding.map_or(usize::MAX, NonZeroUsize::get);
            let mut writer = Writer { row: Vec::with_capacity(row.len() * 3 / 2), most, ..Writer::default() };
            for (step, &action) in row.iter().enumerate() {
                let placing = match action {
                    Action::Single(task) if task.is_skip() && !options.skips => Placing::Implicit,
                    Action::Single(task) if !awaited.at(rank, step) => options.of(task.op()),
                    _ => Placing::Implicit,
                };
                writer.cell(action, placing);
            }
            writer.finish()
        };
        self.with_rows(self.rows().iter().enumerate().map(row).collect())
    }
}

/// The new row so far, and the late waits still to be inserted.
#[derive(Default)]
struct Writer {
    row: Vec<Action>,
    /// The most sends that may be outstanding.
    most: usize,
    /// Waits of sends, in order, and those of them still to be inserted.
    sends: VecDeque<Task>,
    unreplied: HashSet<Task>,
    /// Waits of sends and of receives, keyed by the wait for the neighbour's transfer: one computation answers, or
    /// uses, all transfers of one stage, microbatch and direction.
    replies: HashMap<Task, Vec<Task>>,
    receives: HashMap<Task, Vec<Task>>,
    unshards: HashMap<StageId, Task>,
    reduction: Option<Task>,
}

impl Writer {
    fn cell(&mut self, action: Action, placing: Placing) {
        for task in action.tasks().filter(|task| task.op().is_compute() || task.op() == Op::Reshard) {
            self.before_use(task);
        }
        if let (Action::Single(task), Some(wait)) = (action, action.tasks().next().and_then(Task::wait)) {
            if task.op() == Op::ReduceGrad {
                self.row.extend(self.reduction.take().map(Action::from));
            }
            if placing == Placing::Late && task.op().is_send() {
                self.make_room();
            }
            self.row.push(action);
            match placing {
                Placing::Implicit => {}
                Placing::AtOnce => self.row.push(wait.into()),
                Placing::Late => self.keep(task, wait),
            }
            return;
        }
        self.row.push(action);
        for task in action.tasks().filter(|task| task.op().is_backward()) {
            self.after_reply(task);
        }
    }

    /// Stores a late wait until its place comes.
    fn keep(&mut self, start: Task, wait: Task) {
        match start.op() {
            Op::SendForward | Op::SendBackward => {
                self.sends.push_back(wait);
                self.unreplied.insert(wait);
                self.replies.entry(neighbours(wait)).or_default().push(wait);
            }
            Op::Unshard => drop(self.unshards.insert(start.stage(), wait)),
            Op::ReduceGrad => self.reduction = Some(wait),
            _ => self.receives.entry(neighbours(wait)).or_default().push(wait),
        }
    }

    /// Inserts the waits for the inputs of a computation, or for the parameters that a `RESHARD` frees.
    fn before_use(&mut self, task: Task) {
        self.row.extend(self.unshards.remove(&task.stage()).map(Action::from));
        let op = match task.op() {
            Op::Forward => Op::WaitReceiveForward,
            // A `W` after its `I` finds no wait left.
            op if op.is_backward() => Op::WaitReceiveBackward,
            _ => return,
        };
        let Some(user) = task.of_microbatch() else { return };
        let waits = self.receives.remove(&user.with(user.stage(), op).into()).unwrap_or_default();
        self.row.extend(waits.into_iter().map(Action::from));
    }

    /// Awaits the oldest sends until there is room for one more.
    fn make_room(&mut self) {
        while self.unreplied.len() >= self.most {
            let Some(oldest) = self.sends.pop_front() else { return };
            if self.unreplied.remove(&oldest) {
                self.row.push(oldest.into());
            }
        }
    }

    /// Inserts the waits of the sends that a backward's gradient answers.
    fn after_reply(&mut self, task: Task) {
        let Some(task) = task.of_microbatch() else { return };
        for wait in self.replies.remove(&task.with(task.stage(), Op::WaitSendForward).into()).unwrap_or_default() {
            if self.unreplied.remove(&wait) {
                self.row.push(wait.into());
            }
        }
    }

    /// Inserts the remaining waits, sends in their order.
    fn finish(mut self) -> Vec<Action> {
        self.row.extend(self.reduction.take().map(Action::from));
        let left = self.sends.iter().filter(|wait| self.unreplied.contains(wait));
        self.row.extend(left.copied().map(Action::from));
        self.row
    }
}

/// The wait of the same kind for the transfer to or from the neighbour.
fn neighbours(wait: Task) -> Task {
    wait.of_microbatch().map_or(wait, |wait| wait.with(wait.stage(), wait.op()).into())
}
