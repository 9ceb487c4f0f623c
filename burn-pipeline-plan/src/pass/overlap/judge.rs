//! The judge: a new plan is accepted only if it is legal, not slower, and within the memory budget.
//!
//! 1. The plan must pass [`check`](crate::plan::Plan::check) under the transport of the options.
//! 2. Its simulated makespan must not exceed that of the last accepted plan, beyond the share that the caller allows.
//! 3. The simulated peak of each rank must not exceed the original plan's by more than the options allow.

use super::cell::{self, Cell, units};
use super::memory::{peak, recount};
use super::options::OverlapOptions;
use crate::cost::Profile;
use crate::pass::error::PassError;
use crate::plan::{CheckOptions, Plan};
use crate::simulate::{Simulation, simulate};

/// Tolerance for rounding: times and bytes are sums of many terms.
pub(super) const ROUNDING: f64 = 1e-9;

/// The last accepted plan, its simulated step, and the memory limits.
pub(super) struct Judge<'a> {
    pub(super) plan: Plan,
    pub(super) profile: &'a Profile,
    pub(super) options: OverlapOptions,
    /// The simulated step of the current plan.
    pub(super) step: Simulation,
    /// The bytes that each rank may hold, as the simulator counts them.
    peaks: Vec<f64>,
    /// The memory that each row may hold, as `memory` counts it along the row.
    pub(super) most: Vec<i64>,
    /// The number of actions that were checked and simulated.
    pub(super) judged: usize,
}

impl<'a> Judge<'a> {
    pub(super) fn new(plan: &Plan, profile: &'a Profile, options: &OverlapOptions) -> Result<Self, PassError> {
        let crosses = plan.placement().all_stages().any(|stage| plan.placement().crosses_after(stage));
        if crosses && !plan.is_lowered() {
            return Err(PassError::NotLowered);
        }
        plan.clone().check(&check_options(options))?;
        let step = simulate(plan, profile, &options.simulate)?;
        let extra = |rank: usize| options.extra_bytes + options.extra_share * step.ranks[rank].peak_bytes;
        let peaks = step.ranks.iter().enumerate().map(|(rank, report)| report.peak_bytes + extra(rank)).collect();
        let costs = profile.costs(plan.placement())?;
        let most = |(rank, cells): (usize, &Vec<Cell>)| {
            peak(&recount(cells, 0..cells.len() as u32)).saturating_add(units(extra(rank)))
        };
        let most = cell::rows(plan, &costs).iter().enumerate().map(most).collect();
        Ok(Self { plan: plan.clone(), profile, options: *options, step, peaks, most, judged: 0 })
    }

    /// Accepts a plan, or says why not. The step may be longer than that of the last accepted plan by the share `room`,
    /// or must be shorter by it if negative.
    pub(super) fn admit(&mut self, plan: Plan, room: f64) -> Result<(), String> {
        if plan == self.plan {
            return Ok(());
        }
        self.judged += plan.rows().iter().map(Vec::len).sum::<usize>();
        let refused = |error: &dyn std::fmt::Display| format!("the result was refused: {error}");
        let plan = plan.check(&check_options(&self.options)).map_err(|error| refused(&error))?.into_plan();
        let step = simulate(&plan, self.profile, &self.options.simulate).map_err(|error| refused(&error))?;
        // If nothing takes time, no share of it distinguishes a shorter step from an equal one.
        let slower = step.makespan > self.step.makespan * (1.0 + room);
        if slower || (room < 0.0 && step.makespan >= self.step.makespan) {
            return Err(format!("the step would take {:.4} s", step.makespan));
        }
        for (rank, most) in self.peaks.iter().enumerate() {
            let bytes = step.ranks[rank].peak_bytes;
            if bytes > most * (1.0 + ROUNDING) {
                return Err(format!("rank {rank} would hold {bytes:.0} bytes"));
            }
        }
        (self.plan, self.step) = (plan, step);
        Ok(())
    }
}

fn check_options(options: &OverlapOptions) -> CheckOptions {
    CheckOptions { transport: options.simulate.transport, ..CheckOptions::default() }
}
