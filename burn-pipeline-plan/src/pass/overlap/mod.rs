//! Communication moved where computation hides it: passes over lowered plans whose starts have waits of their own
//! (`insert_waits`).
//!
//! Guarantees, of every pass here:
//!
//! - the plan passes [`check`](crate::plan::check) before and after, under the transport of the options: by
//!   construction (see `rules`), and checked again;
//! - it is never slower in simulation, and on no rank holds more than it did and the extra that the options grant: else
//!   the plan stays as it was, and the report says why;
//! - sends, receives and collectives of a rank start in the order in which they did
//!   ([`OverlapPass::OrderCommunication`] alone changes it, so that all ranks follow one order);
//! - the same plan, profile and options give the same result, so ranks that share a profile
//!   ([`Profile::median`](crate::cost::Profile::median)) decide alike;
//! - time is near linear in the plan, but for the simulations it is judged by.
//!
//! 1. `cell` prices the cells of a row and finds each start's wait; `exposed` estimates what computation hides.
//! 2. `graph` and `greedy` place all cells of a row at once; `iterative`, on `memory`, swaps neighbours.
//! 3. `order` gives all ranks one order of messages.
//! 4. What came out is simulated and judged here; `report` is the table.
//!
//! The passes are those of PyTorch's `torch/_inductor/comms.py`, where the rows are those of a compiled program.

mod attempt;
mod cell;
mod exposed;
mod graph;
mod greedy;
mod iterative;
mod judge;
mod memory;
mod order;
mod report;
mod rules;

pub use exposed::Exposure;
pub use order::communication_order;
pub use report::{Kept, Limit, PassReport, PassRow};

use super::{Placing, WaitOptions, insert_waits};
use crate::cost::{Profile, ProfileError};
use crate::plan::{Action, CheckError, Plan, Task};
use crate::simulate::{SimulateError, SimulateOptions};
use cell::Cell;
use judge::Judge;

/// A pass over the communication of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OverlapPass {
    /// Gives all ranks one order of messages, where their rows follow none.
    OrderCommunication,
    /// Greedily schedules waits as late as possible.
    SinkWaits,
    /// Greedily schedules starts as early as possible.
    RaiseCommunication,
    /// Both, and fills the time that each start takes with computations, those that are needed soonest first.
    ReorderCompute,
    /// Moves waits down swap by swap, as long as something is exposed and memory allows.
    SinkWaitsIteratively,
    /// Moves starts up swap by swap, as long as something is exposed and memory allows.
    ReorderCommunication,
}

impl OverlapPass {
    /// All passes.
    pub const ALL: [OverlapPass; 6] = [
        OverlapPass::OrderCommunication,
        OverlapPass::SinkWaits,
        OverlapPass::RaiseCommunication,
        OverlapPass::ReorderCompute,
        OverlapPass::SinkWaitsIteratively,
        OverlapPass::ReorderCommunication,
    ];

    /// What [`overlap`] runs where nothing else is asked for.
    pub const USUAL: [OverlapPass; 3] =
        [OverlapPass::ReorderCompute, OverlapPass::SinkWaitsIteratively, OverlapPass::ReorderCommunication];

    /// Its name in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            OverlapPass::OrderCommunication => "order-communication",
            OverlapPass::SinkWaits => "sink-waits",
            OverlapPass::RaiseCommunication => "raise-communication",
            OverlapPass::ReorderCompute => "reorder-compute",
            OverlapPass::SinkWaitsIteratively => "sink-waits-iteratively",
            OverlapPass::ReorderCommunication => "reorder-communication",
        }
    }

    /// The pass of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        OverlapPass::ALL.into_iter().find(|pass| pass.name() == name)
    }

    /// Does it place all cells of a row at once, within a reach?
    fn is_greedy(self) -> bool {
        matches!(self, OverlapPass::SinkWaits | OverlapPass::RaiseCommunication | OverlapPass::ReorderCompute)
    }

    fn aim(self) -> greedy::Aim {
        let both = self == OverlapPass::ReorderCompute;
        greedy::Aim {
            raise: both || self == OverlapPass::RaiseCommunication,
            sink: both || self == OverlapPass::SinkWaits,
            overlap: both,
        }
    }
}

/// Budgets, and how results are judged.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct OverlapOptions {
    /// How steps are simulated; its transport is also the one that plans are checked for.
    pub simulate: SimulateOptions,
    /// Bytes that a rank may hold beyond its peak with the plan given.
    pub extra_bytes: f64,
    /// Prefetch distance: the most computations that a start (or, to hide one, a wait or a computation) may pass.
    pub reach: usize,
    /// The most cells that may go along with a start or a wait; 0 lets nothing go along.
    pub group: usize,
    /// Computation beyond what a start takes, as a share of that, for which starts still rise and waits sink.
    pub margin: f64,
    /// After every swap, count memory anew and compare: a debugging aid, quadratic in the plan.
    pub recount: bool,
}

impl Default for OverlapOptions {
    /// No extra memory, 8 computations, groups of 4 cells beside the first, no margin.
    fn default() -> Self {
        Self { simulate: SimulateOptions::default(), extra_bytes: 0.0, reach: 8, group: 4, margin: 0.0, recount: false }
    }
}

/// Why a plan cannot be worked on.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum OverlapError {
    /// Values that cross ranks are not sent in writing, so there is nothing to move.
    #[error("the plan is not lowered; run `insert_transfers` first")]
    NotLowered,
    /// The plan given cannot be run under the transport of the options.
    #[error(transparent)]
    Check(#[from] Box<CheckError>),
    /// The plan given cannot be simulated.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
    /// The profile does not fit the plan.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// Memory kept up to date differs from a recount: a fault of this library.
    #[error(
        "rank {rank}: after {action} was passed, memory kept up to date differs from a recount; please report the plan"
    )]
    Recount {
        /// The rank.
        rank: usize,
        /// The cell that was passed last.
        action: Action,
    },
}

/// A plan after some passes, and what each of them did.
#[derive(Clone, PartialEq, Debug)]
pub struct Overlapped {
    /// The plan.
    pub plan: Plan,
    /// One report a pass.
    pub reports: Vec<PassReport>,
}

/// Runs passes one after the other over a lowered plan, as it stands: only starts with waits of their own move. Idle
/// cells are dropped.
///
/// The budget of memory is for all of them together, over the plan given.
///
/// # Errors
/// [`OverlapError::NotLowered`]; [`OverlapError::Check`], [`OverlapError::Simulate`] or [`OverlapError::Profile`] where
/// the plan given does not run or the profile is about another one.
///
/// ```
/// use burn_pipeline_plan::cost::{Profile, UniformCosts};
/// use burn_pipeline_plan::pass::overlap::{OverlapOptions, OverlapPass, run_passes};
/// use burn_pipeline_plan::plan::Plan;
///
/// let text = "0F0,0SEND_F0,0WAIT_SEND_F0,0F1,0SEND_F1,0WAIT_SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n";
/// let plan = Plan::from_csv("mine", text)?;
/// let profile = Profile::uniform(plan.placement(), UniformCosts::new(1.0, 1.0, 1.0).with_transfer(1.0))?;
/// let sunk = run_passes(&plan, &profile, &[OverlapPass::SinkWaits], &OverlapOptions::default())?;
/// assert_eq!(sunk.plan.row(0)[3].to_string(), "0SEND_F1");
/// let (before, after) = sunk.reports[0].exposed();
/// assert!(after < before);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run_passes(
    plan: &Plan,
    profile: &Profile,
    passes: &[OverlapPass],
    options: &OverlapOptions,
) -> Result<Overlapped, OverlapError> {
    let mut judge = Judge::new(plan, profile, options)?;
    let reports = passes.iter().map(|&pass| judge.run(pass)).collect::<Result<_, _>>()?;
    Ok(Overlapped { plan: judge.into_plan(), reports })
}

/// Gives every start a wait, then runs passes.
///
/// Waits go where they cost neither time nor memory beyond the budget: late ones ([`Placing::Late`]) first; else those
/// of sends at once, where the passes can take them further; else sends keep none.
///
/// # Errors
/// As [`run_passes`].
pub fn overlap(
    plan: &Plan,
    profile: &Profile,
    passes: &[OverlapPass],
    options: &OverlapOptions,
) -> Result<Overlapped, OverlapError> {
    let mut judge = Judge::new(plan, profile, options)?;
    // A transfer past a neighbour stays where it is: its cell ends when it does.
    let late = WaitOptions { skips: false, ..WaitOptions::all(Placing::Late) };
    let placings = [
        late,
        WaitOptions { sends: Placing::AtOnce, ..late },
        WaitOptions { skips: false, ..WaitOptions::all(Placing::AtOnce) },
        WaitOptions { sends: Placing::Implicit, ..late },
    ];
    for placing in placings {
        if judge.admit(insert_waits(plan, &placing)).is_ok() {
            break;
        }
    }
    let reports = passes.iter().map(|&pass| judge.run(pass)).collect::<Result<_, _>>()?;
    Ok(Overlapped { plan: judge.into_plan(), reports })
}

/// The estimates of one started transfer or collective.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Exposed {
    /// The rank.
    pub rank: usize,
    /// The start.
    pub start: Task,
    /// Seen from the start: computations up to the first wait for something started later.
    pub from_start: Exposure,
    /// Seen from its wait, where it has one: computations before the first start that is awaited in between.
    pub from_wait: Option<Exposure>,
}

/// Estimates how much of each transfer and collective is exposed, by rank and place. A receive and its send are two.
///
/// # Errors
/// If the profile does not fit the plan's placement.
pub fn exposed_communication(plan: &Plan, profile: &Profile) -> Result<Vec<Exposed>, ProfileError> {
    let costs = profile.costs(plan.placement())?;
    let row = |(rank, cells): (usize, Vec<Cell>)| {
        let order: Vec<u32> = (0..cells.len() as u32).collect();
        let (starts, waits) = (exposed::of_starts(&cells, &order), exposed::of_waits(&cells, &order));
        let one = |(cell, content): (usize, &Cell)| {
            let start = content.task().filter(|_| content.role.starts())?;
            let from_wait = waits.get(content.partner as usize).copied();
            Some(Exposed { rank, start, from_start: starts[cell], from_wait })
        };
        cells.iter().enumerate().filter_map(one).collect::<Vec<_>>()
    };
    Ok(cell::rows(plan, &costs).into_iter().enumerate().flat_map(row).collect())
}
