//! A second, small event simulator, to test orders without the library's own.
//!
//! Each rank runs its row in order. An operation starts when its rank is free and its input is there. A value that
//! crosses ranks takes `transfer` longer, and does not occupy the rank. A chunk takes 1/v of the rank's cost.

use burn_pipeline_plan::plan::{Action, Op, Plan, StageId, Task};

/// Costs of a rank for one microbatch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    pub(crate) forward: f64,
    pub(crate) input: f64,
    pub(crate) weight: f64,
    pub(crate) transfer: f64,
    /// Seconds of a fused pair. With `None`, its two tasks run one after the other.
    pub(crate) fused: Option<f64>,
}

impl Costs {
    pub(crate) const fn new(forward: f64, input: f64, weight: f64, transfer: f64) -> Self {
        Self { forward, input, weight, transfer, fused: None }
    }

    fn of(&self, task: Task) -> f64 {
        match task.op() {
            Op::Forward => self.forward,
            Op::BackwardInput => self.input,
            Op::BackwardWeight => self.weight,
            _ => self.input + self.weight,
        }
    }
}

/// The result of one rank.
#[derive(Clone, Debug)]
pub(crate) struct RankTime {
    pub(crate) start: f64,
    pub(crate) end: f64,
    pub(crate) busy: f64,
    /// The most activations held at once, in microbatches of the rank, released at `W` or `B`.
    pub(crate) peak: f64,
}

/// The result of all ranks.
#[derive(Clone, Debug)]
pub(crate) struct Times(pub(crate) Vec<RankTime>);

impl Times {
    pub(crate) fn makespan(&self) -> f64 {
        self.0.iter().map(|r| r.end).fold(0.0, f64::max)
    }

    /// Largest span of a rank.
    pub(crate) fn span(&self) -> f64 {
        self.0.iter().map(|r| r.end - r.start).fold(0.0, f64::max)
    }

    /// Bubble rate over the span, as the zero-bubble papers count it.
    pub(crate) fn rate_over_span(&self) -> f64 {
        (self.span() - self.0[0].busy) / self.span()
    }

    pub(crate) fn peak(&self) -> f64 {
        self.0.iter().map(|r| r.peak).fold(0.0, f64::max)
    }
}

struct State<'a> {
    plan: &'a Plan,
    costs: Costs,
    /// The share of its rank's cost and activations that a chunk has.
    share: f64,
    /// When each (stage slot, microbatch) ended: forward, input gradient.
    ends: [Vec<Option<f64>>; 2],
    width: usize,
    ranks: Vec<Rank>,
}

/// The state of one rank.
struct Rank {
    steps: Vec<Vec<Task>>,
    next: usize,
    start: Option<f64>,
    now: f64,
    busy: f64,
}

impl State<'_> {
    fn cell(&self, stage: StageId, microbatch: usize) -> usize {
        self.plan.placement().slot(stage) * self.width + microbatch
    }

    fn end(&self, pass: usize, stage: StageId, microbatch: usize, to: usize) -> Option<f64> {
        let end = self.ends[pass][self.cell(stage, microbatch)]?;
        Some(end + if self.plan.placement().rank_of(stage) == to { 0.0 } else { self.costs.transfer })
    }

    /// The time at which a task's inputs are there, if they are.
    fn ready(&self, task: Task, rank: usize) -> Option<f64> {
        let (stage, m) = (task.stage(), task.microbatch().unwrap());
        match task.op() {
            Op::Forward => stage.previous().map_or(Some(0.0), |s| self.end(0, s, m, rank)),
            Op::BackwardWeight => self.end(1, stage, m, rank),
            _ => {
                let own = self.end(0, stage, m, rank)?;
                let above = self.plan.placement().next(stage);
                Some(own.max(above.map_or(Some(0.0), |s| self.end(1, s, m, rank))?))
            }
        }
    }

    /// Runs a rank's next step, if it has one and its inputs are there.
    fn advance(&mut self, rank: usize) -> Option<()> {
        let step = self.ranks[rank].steps.get(self.ranks[rank].next)?.clone();
        let inputs = step.iter().map(|&task| self.ready(task, rank)).collect::<Option<Vec<f64>>>()?;
        let cost = match (step.as_slice(), self.costs.fused) {
            ([_, _], Some(fused)) => fused,
            _ => step.iter().map(|&task| self.costs.of(task)).sum(),
        } * self.share;
        let state = &mut self.ranks[rank];
        let start = inputs.into_iter().fold(state.now, f64::max);
        state.start.get_or_insert(start);
        state.now = start + cost;
        state.busy += cost;
        state.next += 1;
        for task in step {
            let cell = self.cell(task.stage(), task.microbatch().unwrap());
            match task.op() {
                Op::Forward => self.ends[0][cell] = Some(start + cost),
                op if op.gives_input_gradient() => self.ends[1][cell] = Some(start + cost),
                _ => {}
            }
        }
        Some(())
    }
}

/// Runs the plan. The error names a rank that waits forever, and the task that it waits for.
pub(crate) fn run(plan: &Plan, costs: Costs) -> Result<Times, String> {
    let width = plan.microbatches().iter().copied().max().unwrap();
    let cells = plan.placement().slots() * width;
    let rank = |row: &Vec<Action>| Rank {
        steps: steps(row, costs.fused.is_some()),
        next: 0,
        start: None,
        now: 0.0,
        busy: 0.0,
    };
    let mut state = State {
        plan,
        costs,
        share: plan.ranks() as f64 / plan.stages() as f64,
        ends: [vec![None; cells], vec![None; cells]],
        width,
        ranks: plan.rows().iter().map(rank).collect(),
    };
    let mut moved = true;
    while moved {
        moved = false;
        for rank in 0..plan.ranks() {
            while state.advance(rank).is_some() {
                moved = true;
            }
        }
    }
    if let Some((rank, stuck)) = state.ranks.iter().enumerate().find(|(_, rank)| rank.next < rank.steps.len()) {
        return Err(format!("{}: rank {rank} waits for ever at {:?}", plan.name(), stuck.steps[stuck.next]));
    }
    let time = |(rank, state_of): (usize, &Rank)| RankTime {
        start: state_of.start.unwrap_or(0.0),
        end: state_of.now,
        busy: state_of.busy,
        peak: peak(plan, rank) as f64 * state.share,
    };
    Ok(Times(state.ranks.iter().enumerate().map(time).collect()))
}

/// The steps of a row, with a fused pair as one step or as its two tasks.
fn steps(row: &[Action], fused: bool) -> Vec<Vec<Task>> {
    let cell = |action: &Action| {
        if fused { vec![action.tasks().collect()] } else { action.tasks().map(|task| vec![task]).collect::<Vec<_>>() }
    };
    row.iter().filter(|action| !action.is_idle()).flat_map(cell).collect()
}

/// The most chunks held at once.
fn peak(plan: &Plan, rank: usize) -> usize {
    let (mut held, mut peak) = (0_usize, 0);
    for task in plan.tasks(rank) {
        match task.op() {
            Op::Forward => held += 1,
            op if op.gives_weight_gradient() => held -= 1,
            _ => {}
        }
        peak = peak.max(held);
    }
    peak
}
