//! Inserts collectives into rows, each where its rank can start it, in one order on all ranks.
//!
//! They are ordered by their end times. A rank starts each as soon as it has computed its part and has started the
//! previous one. That is never later than the end of the collective in the timed run: so no rank waits longer than
//! it did there, and the plan cannot deadlock.

use super::list::Listing;
use crate::plan::vocabulary::VocabularyLayers;
use crate::plan::{Action, MicrobatchTask, Op, Plan};
use std::collections::HashSet;

/// The plan with the listed rows and the collectives.
pub(super) fn merged(plan: &Plan, listing: Listing) -> Plan {
    let vocabulary = VocabularyLayers::of(&plan.with_rows(listing.rows.clone()));
    let mut order = listing.collectives;
    order.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    let row = |(rank, row): (usize, &Vec<Action>)| {
        let mut row_so_far = Writer { rank, plan, vocabulary, order: &order, done: HashSet::new(), row: Vec::new() };
        row_so_far.start();
        row.iter().for_each(|&action| row_so_far.cell(action));
        row_so_far.row
    };
    plan.with_rows(listing.rows.iter().enumerate().map(row).collect())
}

struct Writer<'a> {
    rank: usize,
    plan: &'a Plan,
    vocabulary: VocabularyLayers,
    /// The collectives still to be started.
    order: &'a [(MicrobatchTask, f64)],
    /// The inputs of collectives that the row has computed so far.
    done: HashSet<MicrobatchTask>,
    row: Vec<Action>,
}

impl Writer<'_> {
    fn cell(&mut self, action: Action) {
        self.row.push(action);
        for task in action.tasks().filter_map(|task| task.of_microbatch()) {
            let whole = if task.op() == Op::BackwardInput { Op::Backward } else { task.op() };
            self.done.insert(task.with(task.stage(), whole));
        }
        self.start();
    }

    /// Starts all collectives that can start.
    fn start(&mut self) {
        while let Some((&(collective, _), rest)) = self.order.split_first() {
            let holds = self.plan.placement().rank_of(collective.stage()) == self.rank;
            if self.vocabulary.given(collective, holds).is_some_and(|given| !self.done.contains(&given)) {
                return;
            }
            self.row.push(collective.into());
            self.order = rest;
        }
    }
}
