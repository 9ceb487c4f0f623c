//! Plans as CSV: one row per rank, one cell per action, an empty cell for an idle slot.
//!
//! Guarantees: [`Plan::from_csv`] of [`Plan::to_csv`] gives the same rows, but a row of one idle slot becomes empty.
//! Files written by PyTorch's `_dump_csv` are read unchanged, with either line ending. An error names the line and the
//! cell, both counted from 1. Cells are never quoted, since no action's text contains a comma.

use super::action::Action;
use super::error::PlanError;
use super::rows::Plan;
use super::text::action;
use std::fmt::Write;

impl Plan {
    /// Reads one row per rank; placement and microbatch counts are inferred as in [`Plan::infer`].
    ///
    /// ```
    /// use burn_pipeline_plan::plan::Plan;
    /// let plan = Plan::from_csv("mine", "0F0,0F1,,0B0,0B1\n1F0,1B0,1F1,1B1\n")?;
    /// assert_eq!((plan.ranks(), plan.stages(), plan.total_microbatches()), (2, 2, 2));
    /// # Ok::<(), burn_pipeline_plan::plan::PlanError>(())
    /// ```
    pub fn from_csv(name: impl Into<String>, text: &str) -> Result<Self, PlanError> {
        let parse = |(line, row): (usize, &str)| -> Result<Vec<Action>, PlanError> {
            let cells = row.split(',').enumerate().map(|(cell, text)| {
                let place = Some((line + 1, cell + 1));
                action(text).map_err(|reason| PlanError::Action { cell: place, text: text.to_owned(), reason })
            });
            let mut row: Vec<Action> = cells.collect::<Result<_, _>>()?;
            // A blank line is a rank without actions, not a rank with one idle slot.
            if row == [Action::Idle] {
                row.clear();
            }
            Ok(row)
        };
        let rows = text.lines().enumerate().map(parse).collect::<Result<_, _>>()?;
        Plan::infer(name, rows)
    }

    /// The plan as CSV, one line per rank, in the form that [`Plan::from_csv`] reads.
    pub fn to_csv(&self) -> String {
        let mut text = String::new();
        for row in self.rows() {
            for (cell, action) in row.iter().enumerate() {
                if cell > 0 {
                    text.push(',');
                }
                // Writing into a string cannot fail.
                let _ = write!(text, "{action}");
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_the_round_trip() {
        let text = "0F0,,0F1,(0F2;1B0)OVERLAP_F_B\n'0F0,2UNSHARD,1SEND_F1\n";
        let rows: Vec<Vec<Action>> = text.lines().map(|l| l.split(',').map(|c| c.parse().unwrap()).collect()).collect();
        let placement = super::super::Placement::from_map(2, vec![vec![0, 0, 1], vec![1, 1, 1]]).unwrap();
        let plan = Plan::new("t", placement, vec![3, 1], rows).unwrap();
        assert_eq!(plan.to_csv(), text);
        let json = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), plan);
    }

    #[test]
    fn carriage_returns_are_read() {
        let plan = Plan::from_csv("t", "0F0,0B0\r\n1F0,1B0\r\n").unwrap();
        assert_eq!(plan.row(1).len(), 2);
    }

    #[test]
    fn a_bad_cell_is_named() {
        let error = Plan::from_csv("t", "0F0,0B0\n1F0,1X0\n").unwrap_err();
        assert!(matches!(error, PlanError::Action { cell: Some((2, 2)), .. }), "{error}");
        assert!(matches!(Plan::from_csv("t", ""), Err(PlanError::Empty { .. })));
    }
}
