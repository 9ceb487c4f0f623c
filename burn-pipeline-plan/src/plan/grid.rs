//! A plan as a grid of text: one line per step, one column per rank, and optionally one marked step.
//!
//! Guarantees: [`Plan::grid`] and [`Plan::grid_marked`] give exactly the layout of PyTorch's
//! `_format_pipeline_order`, without and with its mark, trailing spaces included. Unlike PyTorch's, they accept no
//! rows, and fewer steps than ranks.
//!
//! ```text
//!         Rank 0 Rank 1
//! Step 0: 0F0           
//! Step 1: 0F1    1F0     <-- ERROR HERE
//! ```

use super::action::Action;
use super::rows::Plan;
use std::fmt::Write;
use std::ops::Range;

/// Steps shown before and after the step of an error.
const STEPS_AROUND: usize = 4;
/// The most ranks shown for an error.
const RANKS_SHOWN: usize = 8;

impl Plan {
    /// The whole plan, one line per step and one column per rank.
    ///
    /// ```
    /// use burn_pipeline_plan::plan::Plan;
    /// let plan = Plan::from_csv("mine", "0F0,,0B0\n1F0,1B0\n")?;
    /// assert!(plan.grid().starts_with("        Rank 0 Rank 1\nStep 0: 0F0    1F0   \n"));
    /// # Ok::<(), burn_pipeline_plan::plan::PlanError>(())
    /// ```
    pub fn grid(&self) -> String {
        window(self.rows(), 0..self.ranks(), 0..self.longest_row(), None)
    }

    /// The grid of [`grid`](Self::grid) with one step marked, such as the place of a
    /// [`CheckError`](crate::plan::CheckError::place) or of a failed run. A step past the last one, such as that of
    /// a missing action, gets an empty line.
    ///
    /// ```
    /// use burn_pipeline_plan::plan::{CheckOptions, Plan};
    /// let plan = Plan::from_csv("mine", "0F0,0B0\n1B0,1F0\n")?;
    /// let error = plan.clone().check(&CheckOptions::default()).unwrap_err();
    /// let (rank, step) = error.place().ok_or("no place")?;
    /// assert_eq!((rank, step), (1, 0));
    /// assert!(plan.grid_marked(step).ends_with("Step 0: 0F0    1B0    <-- ERROR HERE\nStep 1: 0B0    1F0   \n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn grid_marked(&self, step: usize) -> String {
        let steps = self.longest_row().max(step.saturating_add(1));
        window(self.rows(), 0..self.ranks(), 0..steps, Some(step))
    }

    /// The part of the grid around one step of one rank, with that step marked.
    pub fn excerpt(&self, rank: usize, step: usize) -> String {
        let rows = self.rows();
        let longest = self.longest_row().max(step.saturating_add(1));
        let steps = step.saturating_sub(STEPS_AROUND)..step.saturating_add(STEPS_AROUND + 1).min(longest);
        let first = rank.saturating_sub(RANKS_SHOWN / 2).min(rows.len().saturating_sub(RANKS_SHOWN));
        let text = window(rows, first..(first + RANKS_SHOWN).min(rows.len()), steps, Some(step));
        text.trim_end_matches('\n').to_owned()
    }

    fn longest_row(&self) -> usize {
        self.rows().iter().map(Vec::len).max().unwrap_or(0)
    }
}

fn window(rows: &[Vec<Action>], ranks: Range<usize>, steps: Range<usize>, mark: Option<usize>) -> String {
    let digits = steps.end.saturating_sub(1).to_string().len();
    let label = "Step ".len() + digits;
    let cell = |rank: usize, step: usize| rows[rank].get(step).map_or(String::new(), Action::to_string);
    let width = |rank| steps.clone().map(|step| cell(rank, step).len()).fold(label, usize::max);
    let widths: Vec<usize> = ranks.clone().map(width).collect();
    let joined = |cells: &mut dyn Iterator<Item = String>| {
        let padded = cells.zip(&widths).map(|(text, &width)| format!("{text:<width$}"));
        padded.collect::<Vec<_>>().join(" ")
    };
    let mut text = format!("{:1$}", "", label + 2) + &joined(&mut ranks.clone().map(|rank| format!("Rank {rank}")));
    text.push('\n');
    for step in steps {
        let row = joined(&mut ranks.clone().map(|rank| cell(rank, step)));
        let mark = if mark == Some(step) { " <-- ERROR HERE" } else { "" };
        // Writing into a string cannot fail.
        let _ = writeln!(text, "Step {step:0digits$}: {row}{mark}");
    }
    text
}
