//! The lists of collectives of one computation's holders, run against each other: step 1 of [`collectives`](super::collectives).

use super::collectives::{Among, Collective, CollectiveError, StageCollectives, Standing};
use crate::plan::action::Action;
use crate::plan::op::Op;
use crate::plan::task::Task;

/// The lists of one computation, run against each other.
pub(super) struct Lists<'a> {
    members: usize,
    lists: Vec<Option<Vec<&'a Collective>>>,
    next: Vec<usize>,
}

/// Holders that wait for ever.
pub(super) enum Stuck {
    Differ([Standing; 2]),
    Circle(Vec<Standing>),
}

impl Stuck {
    pub(super) fn at(self, rank: usize, step: usize, action: Action, task: Task) -> CollectiveError {
        match self {
            Stuck::Differ([first, second]) => CollectiveError::Differ { rank, step, action, task, first, second },
            Stuck::Circle(circle) => CollectiveError::Circle { rank, step, action, task, circle },
        }
    }
}

impl<'a> Lists<'a> {
    pub(super) fn new(of: &'a StageCollectives, op: Op) -> Self {
        let lists = of.holders.iter().map(|holder| holder.as_ref().map(|holder| holder.of(op))).collect();
        Self { members: of.members, lists, next: vec![0; of.holders.len()] }
    }

    /// Runs them to their ends.
    pub(super) fn run(mut self) -> Result<(), Stuck> {
        let mut ready: Vec<usize> = (0..self.lists.len()).rev().collect();
        while let Some(holder) = ready.pop() {
            let Some(collective) = self.head(holder) else { continue };
            let ranks: Vec<usize> = self.known(holder, collective.among).collect();
            if ranks.iter().all(|&other| self.head(other) == Some(collective)) {
                ranks.iter().for_each(|&other| self.next[other] += 1);
                ready.extend(ranks);
            }
        }
        match (0..self.lists.len()).find(|&holder| self.head(holder).is_some()) {
            None => Ok(()),
            Some(holder) => Err(self.stuck(holder)),
        }
    }

    /// Where a holder stands; `None` at the end of its list, or without one.
    fn head(&self, holder: usize) -> Option<&'a Collective> {
        self.lists[holder].as_ref()?.get(self.next[holder]).copied()
    }

    /// The holders that run a collective with this one, itself among them, of those whose lists are known.
    fn known(&self, holder: usize, among: Among) -> impl Iterator<Item = usize> + use<'_, 'a> {
        let members = self.members;
        let same = move |other: &usize| match among {
            Among::Members => other / members == holder / members,
            Among::Replicas => other % members == holder % members,
        };
        (0..self.lists.len()).filter(same).filter(|&other| self.lists[other].is_some())
    }

    /// The first holder for which this one waits, if it has not ended.
    fn awaited(&self, holder: usize) -> Option<usize> {
        let collective = self.head(holder)?;
        self.known(holder, collective.among).find(|&other| self.head(other) != Some(collective))
    }

    /// Why none goes on, where this holder does not: two at different collectives of the same ranks, or else a circle from this one.
    fn stuck(&self, first: usize) -> Stuck {
        for holder in first..self.lists.len() {
            let Some(collective) = self.head(holder) else { continue };
            let differs = |&other: &usize| {
                self.head(other).is_none_or(|head| head.among == collective.among && head != collective)
            };
            if let Some(other) = self.known(holder, collective.among).find(differs) {
                return Stuck::Differ([holder, other].map(|holder| self.standing(holder)));
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
        Stuck::Circle(path.into_iter().map(|holder| self.standing(holder)).collect())
    }

    fn standing(&self, holder: usize) -> Standing {
        let (replica, member) = (holder / self.members, holder % self.members);
        Standing { replica, member, number: self.next[holder] + 1, collective: self.head(holder).cloned() }
    }
}
