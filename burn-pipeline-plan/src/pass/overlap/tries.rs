//! Runs one pass: attempts within shorter and shorter reaches, each judged.
//!
//! A greedy pass that gains nothing is tried again within up to four shorter reaches. Their number does not depend
//! on the plan's length or on the first attempt's result, so the time grows with the plan alone.

use super::attempt::PassInput;
use super::judge::{Judge, ROUNDING};
use super::options::OverlapPass;
use super::report::PassReport;
use crate::pass::error::PassError;

/// Further attempts start from this reach at most, and divide it by `SHORTER` each time. So the number of attempts
/// does not depend on the length of the plan.
const LONGEST: usize = 64;
const SHORTER: usize = 4;

impl Judge<'_> {
    /// Runs a pass and accepts its result if it is no worse. A greedy pass that moves something and gains nothing
    /// is retried within a shorter reach; then the result must be faster.
    pub(super) fn run(&mut self, pass: OverlapPass) -> Result<PassReport, PassError> {
        let (makespan_before, peak_before) = (self.step.makespan, self.step.peak_bytes());
        let prepared = PassInput::new(self, pass)?;
        let mut reach = self.options.reach;
        let before = self.plan.clone();
        let mut report = self.run_within(&prepared, pass, reach, ROUNDING);
        reach = reach.min(LONGEST);
        // If the attempt was accepted and changed nothing, nothing can move within any reach.
        let again = pass.is_greedy() && (report.kept.is_some() || self.plan != before);
        while again && self.step.makespan >= makespan_before && reach > 0 {
            reach /= SHORTER;
            let next = self.run_within(&prepared, pass, reach, -ROUNDING);
            let work = report.work + next.work;
            report = PassReport { work, ..if next.makespan_after < next.makespan_before { next } else { report } };
        }
        let report = PassReport { makespan_before, peak_before, ..report };
        report.emit();
        Ok(report)
    }

    fn run_within(&mut self, prepared: &PassInput, pass: OverlapPass, reach: usize, room: f64) -> PassReport {
        let attempt = prepared.attempt(self, pass, reach);
        let (makespan_before, peak_before, judged) = (self.step.makespan, self.step.peak_bytes(), self.judged);
        let kept = self.admit(self.plan.with_rows(attempt.rows), room).err();
        PassReport {
            pass: pass.name(),
            reach,
            starts: attempt.table,
            makespan_before,
            makespan_after: self.step.makespan,
            peak_before,
            peak_after: self.step.peak_bytes(),
            kept,
            work: attempt.work + self.judged - judged,
        }
    }
}
