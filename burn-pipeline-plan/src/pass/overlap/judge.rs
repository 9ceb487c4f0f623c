//! The judge: a plan is only exchanged for one that is legal, not slower, and within the budget of memory.

use super::attempt::Prepared;
use super::cell::{self, Cell, units};
use super::memory::{peak, recount};
use super::report::{Kept, PassReport};
use super::{OverlapError, OverlapOptions, OverlapPass};
use crate::cost::Profile;
use crate::plan::{CheckOptions, Plan};
use crate::simulate::{Simulation, simulate};

/// Room for rounding: times and bytes are sums of many.
const ROUNDING: f64 = 1e-9;

/// The longest reach that is shortened step by step, and by what.
const LONGEST: usize = 64;
const SHORTER: usize = 4;

/// A plan that passed, with what it takes and what it may take.
pub(super) struct Judge<'a> {
    plan: Plan,
    profile: &'a Profile,
    options: OverlapOptions,
    step: Simulation,
    /// Bytes that each rank may hold in simulation.
    peaks: Vec<f64>,
    /// What each row may hold, counted along it.
    most: Vec<i64>,
    /// Actions that were checked and simulated.
    judged: usize,
}

impl<'a> Judge<'a> {
    pub(super) fn new(plan: &Plan, profile: &'a Profile, options: &OverlapOptions) -> Result<Self, OverlapError> {
        let crosses = plan.placement().all_stages().any(|stage| plan.placement().crosses_after(stage));
        if crosses && !plan.is_lowered() {
            return Err(OverlapError::NotLowered);
        }
        plan.clone().check(&check_options(options))?;
        let step = simulate(plan, profile, &options.simulate)?;
        let peaks = step.ranks.iter().map(|rank| rank.peak_bytes + options.extra_bytes).collect();
        let costs = profile.costs(plan.placement())?;
        let most = |cells: &Vec<Cell>| peak(&recount(cells, 0..cells.len() as u32)) + units(options.extra_bytes);
        let most = cell::rows(plan, &costs).iter().map(most).collect();
        Ok(Self { plan: plan.clone(), profile, options: *options, step, peaks, most, judged: 0 })
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(super) fn into_plan(self) -> Plan {
        self.plan
    }

    pub(super) fn profile(&self) -> &'a Profile {
        self.profile
    }

    pub(super) fn options(&self) -> &OverlapOptions {
        &self.options
    }

    /// The simulated step of the plan as it stands.
    pub(super) fn step(&self) -> &Simulation {
        &self.step
    }

    /// What a rank's row may hold.
    pub(super) fn most(&self, rank: usize) -> i64 {
        self.most[rank]
    }

    /// Runs a pass; the plan becomes its result if that is no worse. A greedy pass that moves something and gains nothing
    /// is tried again with a shorter reach, and then has to be faster: however long the plan, it takes as many attempts.
    pub(super) fn run(&mut self, pass: OverlapPass) -> Result<PassReport, OverlapError> {
        let (makespan_before, peak_before) = (self.step.makespan, self.step.peak_bytes());
        let prepared = Prepared::new(self, pass)?;
        let mut reach = self.options.reach;
        let before = self.plan.clone();
        let mut report = self.run_within(&prepared, pass, reach, ROUNDING)?;
        reach = reach.min(LONGEST);
        // Where nothing was refused and nothing changed there is nothing to move, within any reach.
        let again = pass.is_greedy() && (report.kept.is_some() || self.plan != before);
        while again && self.step.makespan >= makespan_before && reach > 0 {
            reach /= SHORTER;
            let next = self.run_within(&prepared, pass, reach, -ROUNDING)?;
            let work = report.work + next.work;
            report = PassReport { work, ..if next.makespan_after < next.makespan_before { next } else { report } };
        }
        Ok(PassReport { makespan_before, peak_before, ..report })
    }

    fn run_within(
        &mut self,
        prepared: &Prepared,
        pass: OverlapPass,
        reach: usize,
        room: f64,
    ) -> Result<PassReport, OverlapError> {
        let attempt = prepared.attempt(self, pass, reach)?;
        let (makespan_before, peak_before, judged) = (self.step.makespan, self.step.peak_bytes(), self.judged);
        let kept = self.admit_within(self.plan.with_rows(attempt.rows), room).err();
        Ok(PassReport {
            pass: pass.name(),
            reach,
            rows: attempt.table,
            makespan_before,
            makespan_after: self.step.makespan,
            peak_before,
            peak_after: self.step.peak_bytes(),
            kept,
            recounts: attempt.recounts,
            work: attempt.work + self.judged - judged,
        })
    }

    /// Takes a plan in the place of the one before, or says why not.
    pub(super) fn admit(&mut self, plan: Plan) -> Result<(), Kept> {
        self.admit_within(plan, ROUNDING)
    }

    /// The same, where the step may take longer by a share of `room`, or (below zero) has to be shorter.
    fn admit_within(&mut self, plan: Plan, room: f64) -> Result<(), Kept> {
        if plan == self.plan {
            return Ok(());
        }
        self.judged += plan.rows().iter().map(Vec::len).sum::<usize>();
        let checked = plan.check(&check_options(&self.options)).map_err(|error| Kept::Refused(error.to_string()))?;
        let plan = checked.into_plan();
        let step = simulate(&plan, self.profile, &self.options.simulate);
        let step = step.map_err(|error| Kept::Refused(error.to_string()))?;
        if step.makespan > self.step.makespan * (1.0 + room) {
            return Err(Kept::Slower { makespan: step.makespan });
        }
        let over = |(rank, most): (usize, &f64)| {
            let bytes = step.ranks[rank].peak_bytes;
            (bytes > most * (1.0 + ROUNDING)).then_some(Kept::Memory { rank, bytes })
        };
        match self.peaks.iter().enumerate().find_map(over) {
            Some(kept) => Err(kept),
            None => {
                self.plan = plan;
                self.step = step;
                Ok(())
            }
        }
    }
}

fn check_options(options: &OverlapOptions) -> CheckOptions {
    CheckOptions { transport: options.simulate.transport, ..CheckOptions::default() }
}
