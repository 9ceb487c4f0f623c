//! Runs the collectives of each computation's holders against each other. [`collectives`](super::collectives)
//! explains the proof.

use super::checked::CheckedPlan;
use super::collectives::{Among, Collective, CollectiveError, StageCollectives, Standing};
use crate::plan::action::Action;
use crate::plan::op::Op;
use crate::plan::task::Task;

impl CheckedPlan {
    /// Proves that the holders of stages call their collectives in one order, without a cycle of waits, together
    /// with the plan's transfers.
    ///
    /// Stages that are not given are assumed to call no collectives, or to call them in order.
    ///
    /// ```
    /// use burn_pipeline_plan::plan::{Among, CheckOptions, Collective, Collectives, Plan, StageCollectives};
    /// let plan = Plan::from_csv("mine", "0F0,0B0\n1F0,1B0\n")?.check(&CheckOptions::default())?;
    /// let holder = |shape: &str| {
    ///     let sum = Collective { among: Among::Members, what: format!("all-reduce of {shape}") };
    ///     Some(Collectives { forward: vec![sum], ..Collectives::default() })
    /// };
    /// let stage = |holders| [StageCollectives { stage: 1.into(), members: 2, holders }];
    /// assert!(plan.check_collectives(&stage(vec![holder("[2, 4]"), holder("[2, 4]")])).is_ok());
    /// let error = plan.check_collectives(&stage(vec![holder("[2, 4]"), holder("[2, 3]")])).unwrap_err();
    /// let error = error.to_string();
    /// assert!(error.starts_with("rank 1, step 0, 1F0: ranks of stage 1 call different collectives in F"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns a [`CollectiveError`] with the cell, the holders and their collectives.
    pub fn check_collectives(&self, stages: &[StageCollectives]) -> Result<(), Box<CollectiveError>> {
        stages.iter().try_for_each(|stage| self.check_stage(stage))
    }

    fn check_stage(&self, of: &StageCollectives) -> Result<(), Box<CollectiveError>> {
        let (stage, members, lists) = (of.stage, of.members, of.holders.len());
        let whole = members > 0 && lists > 0 && lists.is_multiple_of(members);
        if !whole || !self.plan().placement().contains(stage) {
            return Err(Box::new(CollectiveError::Lists { stage, members, lists }));
        }
        let rank = self.plan().placement().rank_of(stage);
        let mut seen: Vec<Op> = Vec::new();
        for (step, &action) in self.plan().row(rank).iter().enumerate() {
            for task in action.tasks().filter(|task| task.stage() == stage) {
                // A `W` that is the whole backward calls what `B` calls.
                let whole = task.op() == Op::BackwardWeight && self.plan().begins_backward(task);
                let op = if whole { Op::Backward } else { task.op() };
                if !of.meets(op) || seen.contains(&op) {
                    continue;
                }
                seen.push(op);
                let mut lists = Lists::new(of, op);
                if let Some(holder) = lists.run() {
                    return Err(Box::new(lists.deadlock(holder, (rank, step, action, task))));
                }
            }
        }
        Ok(())
    }
}

/// The lists of one computation, run against each other.
struct Lists<'a> {
    members: usize,
    lists: Vec<Option<Vec<&'a Collective>>>,
    next: Vec<usize>,
}

impl<'a> Lists<'a> {
    fn new(of: &'a StageCollectives, op: Op) -> Self {
        let lists = of.holders.iter().map(|holder| holder.as_ref().map(|holder| holder.of(op))).collect();
        Self { members: of.members, lists, next: vec![0; of.holders.len()] }
    }

    /// Runs the lists as far as possible, and returns the first holder that waits forever.
    fn run(&mut self) -> Option<usize> {
        let mut ready: Vec<usize> = (0..self.lists.len()).rev().collect();
        while let Some(holder) = ready.pop() {
            let Some(collective) = self.head(holder) else { continue };
            let ranks: Vec<usize> = self.known(holder, collective.among).collect();
            if ranks.iter().all(|&other| self.head(other) == Some(collective)) {
                ranks.iter().for_each(|&other| self.next[other] += 1);
                ready.extend(ranks);
            }
        }
        (0..self.lists.len()).find(|&holder| self.head(holder).is_some())
    }

    /// The next collective of a holder; `None` at the end of its list, or if it has no list.
    fn head(&self, holder: usize) -> Option<&'a Collective> {
        self.lists[holder].as_ref()?.get(self.next[holder]).copied()
    }

    /// The holders that take part in a collective of this holder, including itself, if their lists are known.
    fn known(&self, holder: usize, among: Among) -> impl Iterator<Item = usize> + use<'_, 'a> {
        let members = self.members;
        let same = move |other: &usize| match among {
            Among::Members => other / members == holder / members,
            Among::Replicas => other % members == holder % members,
        };
        (0..self.lists.len()).filter(same).filter(|&other| self.lists[other].is_some())
    }

    /// The first holder that this one waits for, if it has not ended.
    fn awaited(&self, holder: usize) -> Option<usize> {
        let collective = self.head(holder)?;
        self.known(holder, collective.among).find(|&other| self.head(other) != Some(collective))
    }

    /// Why this holder cannot continue: two holders at different collectives of the same ranks, or else a cycle of
    /// waits from this one. The place is the first cell where it does not.
    fn deadlock(&self, first: usize, place: (usize, usize, Action, Task)) -> CollectiveError {
        let (rank, step, action, task) = place;
        for holder in first..self.lists.len() {
            let Some(collective) = self.head(holder) else { continue };
            let differs = |&other: &usize| {
                self.head(other).is_none_or(|head| head.among == collective.among && head != collective)
            };
            if let Some(other) = self.known(holder, collective.among).find(differs) {
                let [first, second] = [holder, other].map(|holder| self.standing(holder));
                return CollectiveError::Differ { rank, step, action, task, first, second };
            }
        }
        let mut path = vec![first];
        while let Some(next) = self.awaited(path[path.len() - 1]) {
            if let Some(start) = path.iter().position(|&holder| holder == next) {
                path.drain(..start);
                break;
            }
            path.push(next);
        }
        let cycle = path.into_iter().map(|holder| self.standing(holder)).collect();
        CollectiveError::Cycle { rank, step, action, task, cycle }
    }

    fn standing(&self, holder: usize) -> Standing {
        let (replica, member) = (holder / self.members, holder % self.members);
        Standing { replica, member, number: self.next[holder] + 1, collective: self.head(holder).cloned() }
    }
}
