//! A second implementation of the check, as simple as possible: sets, queues, and trying every rank again and again.
//! It shares no code and no data structure with the library's check.

use burn_pipeline_plan::plan::{Action, Op, Plan, StageId, Task, Transport};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Returns true if the plan runs to its end, and every required task has then run exactly once.
pub(crate) fn is_legal(plan: &Plan, transport: Transport) -> bool {
    let mut run = Run::new(plan);
    while !run.broken && (0..plan.ranks()).any(|rank| run.step(rank, transport)) {}
    // Stages of a route without microbatches have nothing to reduce, but may be reduced.
    run.done.retain(|task| task.op() != Op::ReduceGrad || plan.microbatches()[task.stage().route()] > 0);
    run.done.retain(|task| !task.op().is_wait());
    // Both ends of a channel must have started the same values in the same order.
    for ends in run.started.values() {
        let values: Vec<Task> = ends[0].iter().map(|send| counterpart(plan, *send).unwrap()).collect();
        run.broken |= values != ends[1];
    }
    let ended = (0..plan.ranks()).all(|rank| run.position[rank] == run.rows[rank].len());
    !run.broken && ended && run.done == owed(plan) && run.bracketed()
}

/// The state of a run.
struct Run<'a> {
    plan: &'a Plan,
    waits: bool,
    /// Transfers started on a channel, by end: sends, then receives.
    started: BTreeMap<(usize, usize), [Vec<Task>; 2]>,
    /// True if the rank has started the transfer at which it waits.
    posted: Vec<bool>,
    used: BTreeSet<StageId>,
    rows: Vec<Vec<Action>>,
    position: Vec<usize>,
    done: BTreeSet<Task>,
    queues: BTreeMap<(usize, usize), VecDeque<Task>>,
    gathered: BTreeSet<StageId>,
    bare: bool,
    /// True if a stage was released that had not computed since it was gathered.
    idle: bool,
    manages: bool,
    broken: bool,
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan) -> Self {
        let rows = plan.rows().iter().map(|row| row.iter().copied().filter(|a| !a.is_idle()).collect()).collect();
        Self {
            plan,
            waits: plan.any_task(|task| task.op().is_wait()),
            started: BTreeMap::new(),
            posted: vec![false; plan.ranks()],
            used: BTreeSet::new(),
            rows,
            position: vec![0; plan.ranks()],
            done: BTreeSet::new(),
            queues: BTreeMap::new(),
            gathered: BTreeSet::new(),
            bare: false,
            idle: false,
            manages: false,
            broken: false,
        }
    }

    fn head(&self, rank: usize) -> Option<Action> {
        self.rows[rank].get(self.position[rank]).copied()
    }

    /// Runs the next cell of a rank if it can run now.
    fn step(&mut self, rank: usize, transport: Transport) -> bool {
        let Some(action) = self.head(rank) else { return false };
        let tasks: Vec<Task> = action.tasks().collect();
        if tasks.len() == 2 {
            let same = (tasks[0].stage(), tasks[0].microbatch()) == (tasks[1].stage(), tasks[1].microbatch());
            self.broken |= same || tasks[0].op() != Op::Forward || !tasks[1].op().gives_input_gradient();
        }
        let homeless = |task: &Task| {
            let placement = self.plan.placement();
            !placement.contains(task.stage())
                || placement.rank_of(task.stage()) != rank
                || task.microbatch().is_some_and(|m| m >= self.plan.microbatches()[task.stage().route()])
        };
        if self.broken || tasks.iter().any(homeless) {
            self.broken = true;
            return false;
        }
        if self.waits && (tasks[0].op().is_transfer() || tasks[0].op().is_transfer_wait()) {
            return self.awaited_transfer(rank, tasks[0], transport);
        }
        if tasks[0].op().is_transfer() {
            return self.transfer(rank, tasks[0], transport);
        }
        if !tasks.iter().all(|task| self.inputs(*task).iter().all(|any| any.iter().any(|t| self.done.contains(t)))) {
            return false;
        }
        tasks.into_iter().for_each(|task| self.finish(task));
        self.position[rank] += 1;
        true
    }

    fn finish(&mut self, task: Task) {
        match task.op() {
            Op::Unshard => {
                self.manages = true;
                self.broken |= !self.gathered.insert(task.stage());
                self.used.remove(&task.stage());
                self.done.remove(&Task::whole_stage(task.stage(), Op::WaitUnshard));
            }
            Op::WaitUnshard => {
                let late = !self.gathered.contains(&task.stage()) || self.used.contains(&task.stage());
                self.broken |= late || !self.done.insert(task);
            }
            Op::Reshard => {
                self.manages = true;
                self.broken |= !self.gathered.remove(&task.stage());
                self.idle |= !self.used.contains(&task.stage());
            }
            op => {
                self.broken |= !self.done.insert(task);
                if op.is_compute() {
                    self.used.insert(task.stage());
                }
                self.bare |= op.is_compute() && !self.gathered.contains(&task.stage());
            }
        }
    }

    fn bracketed(&self) -> bool {
        !(self.idle || self.manages && self.bare) && self.gathered.is_subset(&self.used)
    }

    /// The tasks that must have run before: one of each list.
    fn inputs(&self, task: Task) -> Vec<Vec<Task>> {
        let Some(mb) = task.microbatch() else { return self.inputs_of_reduction(task) };
        let (stage, placement) = (task.stage(), self.plan.placement());
        let other = |s: StageId| placement.rank_of(s) != placement.rank_of(stage);
        let lowered = self.plan.is_lowered();
        let mut needs = self.neighbours(task, mb);
        // Inputs along skip edges: values for a forward, gradients for a backward.
        for edge in self.plan.skips().iter().filter(|_| lowered) {
            let ends = [edge.from, edge.to].map(|index| StageId::in_route(stage.route(), index));
            let (own, peer, op) = match task.op() {
                Op::Forward => (ends[1], ends[0], Op::ReceiveForward),
                Op::Backward | Op::BackwardInput => (ends[0], ends[1], Op::ReceiveBackward),
                _ => continue,
            };
            if own == stage && other(peer) {
                needs.push(vec![Task::skip(stage, op, mb, peer.index())]);
            }
        }
        needs
    }

    fn neighbours(&self, task: Task, mb: usize) -> Vec<Vec<Task>> {
        let (stage, placement) = (task.stage(), self.plan.placement());
        let other = |s: StageId| placement.rank_of(s) != placement.rank_of(stage);
        let lowered = self.plan.is_lowered();
        match task.op() {
            Op::Forward => match stage.previous() {
                Some(before) if other(before) && lowered => vec![vec![Task::new(stage, Op::ReceiveForward, mb)]],
                Some(before) => vec![vec![Task::new(before, Op::Forward, mb)]],
                None => vec![],
            },
            Op::Backward | Op::BackwardInput => {
                let mut needs = vec![vec![Task::new(stage, Op::Forward, mb)]];
                match placement.next(stage) {
                    Some(after) if other(after) && lowered => {
                        needs.push(vec![Task::new(stage, Op::ReceiveBackward, mb)])
                    }
                    Some(after) => {
                        needs.push(vec![Task::new(after, Op::Backward, mb), Task::new(after, Op::BackwardInput, mb)])
                    }
                    None => {}
                }
                needs
            }
            _ => vec![vec![Task::new(stage, Op::BackwardInput, mb)]],
        }
    }

    fn inputs_of_reduction(&self, task: Task) -> Vec<Vec<Task>> {
        if task.op() == Op::WaitReduceGrad {
            return vec![vec![Task::whole_stage(task.stage(), Op::ReduceGrad)]];
        }
        if task.op() != Op::ReduceGrad {
            return vec![];
        }
        let all = 0..self.plan.microbatches()[task.stage().route()];
        let either =
            |mb| vec![Task::new(task.stage(), Op::Backward, mb), Task::new(task.stage(), Op::BackwardWeight, mb)];
        all.map(either).collect()
    }

    /// Runs a send or a receive.
    fn transfer(&mut self, rank: usize, task: Task, transport: Transport) -> bool {
        let (stage, mb) = (task.stage(), task.microbatch().unwrap());
        let forward = matches!(task.op(), Op::SendForward | Op::ReceiveForward);
        let sends = matches!(task.op(), Op::SendForward | Op::SendBackward);
        let edge = |peer: StageId| (stage.index().min(peer.index()), stage.index().max(peer.index()));
        let known = task.skip_peer().is_none_or(|peer| self.plan.skips().contains(&edge(peer).into()));
        let there = counterpart(self.plan, task).filter(|_| known);
        let there = there.map(|there| (there, self.plan.placement().rank_of(there.stage())));
        let Some((counterpart, peer)) = there.filter(|&(_, peer)| peer != rank) else {
            self.broken = true;
            return false;
        };
        if sends && !computations(forward).iter().any(|&op| self.done.contains(&Task::new(stage, op, mb))) {
            return false;
        }
        match transport {
            Transport::Rendezvous | Transport::Buffered(0) => {
                // Both ends advance together once the sender has the value; the receiver never advances alone.
                if !sends || self.head(peer) != Some(counterpart.into()) {
                    return false;
                }
                self.finish(counterpart);
                self.position[peer] += 1;
            }
            Transport::Buffered(capacity) if sends => {
                let queue = self.queues.entry((rank, peer)).or_default();
                if queue.len() >= capacity {
                    return false;
                }
                queue.push_back(counterpart);
            }
            Transport::Unbounded if sends => self.queues.entry((rank, peer)).or_default().push_back(counterpart),
            _ => {
                let queue = self.queues.entry((peer, rank)).or_default();
                match queue.pop_front() {
                    None => return false,
                    Some(arrived) => self.broken |= arrived != task,
                }
            }
        }
        self.finish(task);
        self.position[rank] += 1;
        true
    }
}

impl Run<'_> {
    /// Runs a send, a receive or a wait for one, in a plan with waits. A transfer is posted at its start and ends
    /// when its channel allows it. Without a wait, the rank stays at the transfer until then.
    fn awaited_transfer(&mut self, rank: usize, task: Task, transport: Transport) -> bool {
        let start = task.awaits().unwrap_or(task);
        let Some(there) = counterpart(self.plan, start) else {
            self.broken = true;
            return false;
        };
        let sends = matches!(start.op(), Op::SendForward | Op::SendBackward);
        let peer = self.plan.placement().rank_of(there.stage());
        if peer == rank {
            self.broken = true;
            return false;
        }
        let channel = if sends { (rank, peer) } else { (peer, rank) };
        let (stage, mb) = (start.stage(), start.microbatch().unwrap());
        let forward = matches!(start.op(), Op::SendForward | Op::ReceiveForward);
        let computed = computations(forward).iter().any(|&op| self.done.contains(&Task::new(stage, op, mb)));
        if !task.op().is_wait() && !self.posted[rank] {
            self.broken |= self.done.contains(&start) || (sends && !computed);
            self.finish(start);
            self.started.entry(channel).or_default()[usize::from(!sends)].push(start);
            self.posted[rank] = true;
        }
        let wait = start.wait().unwrap();
        if task.op().is_wait() {
            self.broken |= !self.done.contains(&start) || self.done.contains(&wait) || (!sends && computed);
        }
        let later = self.rows[rank][self.position[rank] + 1..].contains(&wait.into());
        let stands = task.op().is_wait() || !later;
        if self.broken || (stands && !self.is_over(channel, start, sends, transport)) {
            return false;
        }
        if task.op().is_wait() {
            self.finish(task);
        }
        self.posted[rank] = false;
        self.position[rank] += 1;
        true
    }

    fn is_over(&self, channel: (usize, usize), start: Task, sends: bool, transport: Transport) -> bool {
        let ends = &self.started[&channel];
        let number = ends[usize::from(!sends)].iter().position(|t| *t == start).unwrap();
        match (sends, transport) {
            (false, _) => ends[0].len() > number,
            (true, Transport::Rendezvous) => ends[1].len() > number,
            (true, Transport::Buffered(room)) => ends[1].len() + room > number,
            (true, Transport::Unbounded) => true,
        }
    }
}

/// The computations that make a value, or the gradient of one: any of them.
fn computations(forward: bool) -> [Op; 2] {
    if forward { [Op::Forward; 2] } else { [Op::Backward, Op::BackwardInput] }
}

/// The transfer at the other end.
pub(crate) fn counterpart(plan: &Plan, transfer: Task) -> Option<Task> {
    let (op, neighbour) = match transfer.op() {
        Op::SendForward => (Op::ReceiveForward, plan.placement().next(transfer.stage())),
        Op::ReceiveBackward => (Op::SendBackward, plan.placement().next(transfer.stage())),
        Op::ReceiveForward => (Op::SendForward, transfer.stage().previous()),
        _ => (Op::ReceiveBackward, transfer.stage().previous()),
    };
    match transfer.skip_peer() {
        Some(peer) => Some(Task::skip(peer, op, transfer.microbatch()?, transfer.stage().index())),
        None => Some(Task::new(neighbour?, op, transfer.microbatch()?)),
    }
}

/// Every task of a complete plan whose backwards are whole or split as in this plan.
fn owed(plan: &Plan) -> BTreeSet<Task> {
    let tasks: BTreeSet<Task> = plan.rows().iter().flatten().flat_map(|action| action.tasks()).collect();
    let (training, lowered) = (plan.has_backward(), plan.is_lowered());
    let reduces = tasks.iter().any(|task| task.op() == Op::ReduceGrad);
    let mut owed = BTreeSet::new();
    for stage in plan.placement().all_stages() {
        let crosses_before = stage.previous().is_some_and(|before| plan.placement().crosses_after(before));
        let crosses_after = plan.placement().crosses_after(stage);
        if reduces && plan.microbatches()[stage.route()] > 0 {
            owed.insert(Task::whole_stage(stage, Op::ReduceGrad));
        }
        for mb in 0..plan.microbatches()[stage.route()] {
            let split = tasks.contains(&Task::new(stage, Op::BackwardInput, mb));
            let due = [
                (Op::Forward, true),
                (Op::Backward, training && !split),
                (Op::BackwardInput, training && split),
                (Op::BackwardWeight, training && split),
                (Op::ReceiveForward, lowered && crosses_before),
                (Op::SendForward, lowered && crosses_after),
                (Op::ReceiveBackward, lowered && training && crosses_after),
                (Op::SendBackward, lowered && training && crosses_before),
            ];
            owed.extend(due.iter().filter(|(_, due)| *due).map(|(op, _)| Task::new(stage, *op, mb)));
            let rank = |index| plan.placement().rank_of(StageId::in_route(stage.route(), index));
            for edge in plan.skips().iter().filter(|edge| lowered && rank(edge.from) != rank(edge.to)) {
                let due = match stage.index() {
                    index if index == edge.from => [(Op::SendForward, true), (Op::ReceiveBackward, training)],
                    index if index == edge.to => [(Op::ReceiveForward, true), (Op::SendBackward, training)],
                    _ => continue,
                };
                let peer = edge.from + edge.to - stage.index();
                owed.extend(due.iter().filter(|(_, due)| *due).map(|(op, _)| Task::skip(stage, *op, mb, peer)));
            }
        }
    }
    owed
}

/// The messages of a lowered plan, by their sends, in an order that every rank's sends and receives follow; `None` if
/// there is none. Of the messages that come next on a rank, one must be next on both its ranks.
pub(crate) fn one_order(plan: &Plan) -> Option<Vec<Task>> {
    let message = |task: Task| match task.op() {
        Op::SendForward | Op::SendBackward => Some(task),
        Op::ReceiveForward | Op::ReceiveBackward => counterpart(plan, task),
        _ => None,
    };
    let mut rows: Vec<std::collections::VecDeque<Task>> =
        (0..plan.ranks()).map(|rank| plan.tasks(rank).filter_map(message).collect()).collect();
    let mut order = Vec::new();
    while rows.iter().any(|row| !row.is_empty()) {
        let firsts: Vec<Task> = rows.iter().filter_map(|row| row.front().copied()).collect();
        let next = *firsts.iter().find(|task| firsts.iter().filter(|other| other == task).count() == 2)?;
        order.push(next);
        for row in rows.iter_mut().filter(|row| row.front() == Some(&next)) {
            row.pop_front();
        }
    }
    Some(order)
}
