//! Proves that all ranks meet captured stages' collectives in one order, before any of them runs.
//!
//! Guarantees: if all ranks of a stage have recorded it, its collectives and the plan's transfers end on all of
//! them; otherwise all of them return an error that names the first place where they would not.
//!
//! 1. Before a captured stage's first training forward each member tells the others what it recorded. With expert
//!    parallelism over replicas, each replica then tells the others what its members recorded.
//! 2. Each rank then has the lists of all, and runs the proof ([`CheckedPlan::check_collectives`]).
//! 3. A member that runs the stage's code itself has no list; the text in each message then shows the first
//!    difference.

use super::exchange::{header, place, read};
use super::group::TensorGroup;
use super::holders::Holders;
use crate::link::{Activity, LinkError, Message};
use crate::payload::{HostValue, Payload, PayloadPart};
use burn_pipeline_plan::plan::{CheckedPlan, CollectiveError, Collectives, StageCollectives, StageId, Standing};
use serde::Serialize;
use serde::de::DeserializeOwned;

impl Holders<'_> {
    /// Proves that all holders of a stage meet their recorded collectives in one order. `recorded` is this rank's
    /// list, or `None` if it recorded none and runs the stage's code itself. All holders call it.
    ///
    /// # Panics
    /// Unwinds with a [`LinkError`] that names the first place where the orders are incompatible, or if a holder
    /// runs something else, failed, left or did not answer.
    pub(crate) fn compare(&self, plan: &CheckedPlan, stage: StageId, recorded: Option<Collectives>) {
        let Self { members, replicas } = self;
        let rank = if members.is_alone() { replicas.set.rank() } else { members.set.rank() };
        let mut all = vec![members.lists((rank, recorded))];
        // Otherwise replicas exchange nothing in tasks, and need not run the same stage at all.
        if !replicas.cut_parameters().is_empty() {
            all = replicas.lists(all.remove(0));
        }
        let (ranks, holders): (Vec<usize>, Vec<_>) = all.into_iter().flatten().unzip();
        let of = [StageCollectives { stage, members: members.size(), holders }];
        if let Err(source) = plan.check_collectives(&of) {
            let rank_of = |at: &Standing| ranks.get(at.replica * members.size() + at.member).copied();
            let ranks = match &*source {
                CollectiveError::Differ { first, second, .. } => {
                    [first, second].into_iter().filter_map(rank_of).collect()
                }
                CollectiveError::Cycle { cycle, .. } => cycle.iter().filter_map(rank_of).collect(),
                _ => ranks,
            };
            std::panic::resume_unwind(Box::new(LinkError::Collectives { rank, ranks, source }));
        }
    }
}

impl TensorGroup {
    /// The lists of all members, in order.
    fn lists<T: Serialize + DeserializeOwned>(&self, own: T) -> Vec<T> {
        if self.is_alone() {
            return vec![own];
        }
        self.over_link(|link, activity| {
            let (rank, deadline, header) = (link.rank(), self.set.deadline(), header(activity));
            let ours = place(activity, "its list of collectives");
            let unread = |peer, error: serde_json::Error| LinkError::Gather { rank, peer, message: error.to_string() };
            let list = serde_json::to_string(&own).map_err(|error| unread(rank, error))?;
            for (_, peer) in self.set.others() {
                let parts = [&ours, &list].map(|text| PayloadPart::Host(HostValue::Text(text.clone())));
                link.send(peer, Message { header, payload: Payload::from_parts(parts) }, deadline)?;
            }
            let mut lists = Vec::new();
            for (_, peer) in self.set.others() {
                link.set_activity(Activity::Waiting(header, peer));
                let (theirs, list) = read(self.set.take(link, peer, header, self.set.deadline())?);
                let Some(PayloadPart::Host(HostValue::Text(list))) = list.filter(|_| theirs == ours) else {
                    return Err(self.unlike(rank, peer, ours, theirs));
                };
                lists.push(serde_json::from_str(&list).map_err(|error| unread(peer, error))?);
            }
            lists.insert(self.member(), own);
            Ok(lists)
        })
    }
}
