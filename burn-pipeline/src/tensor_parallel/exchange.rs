//! Messages between the members of a group.
//!
//! Guarantees: a member accepts a tensor only from the same collective of the same task, with the same shape and
//! element type; every wait ends at the timeout with an error that names the member, or at once if another rank
//! failed.
//!
//! 1. Each message begins with a text: the task, the collective, and shape and type of the sender's tensor.
//! 2. A member first sends to all that need something from it, and receives in member order. Sends do not wait for
//!    their receives ([`Link::send`]), so a program may compute in between. All members begin collectives in one
//!    order, and each ends them in that order, so the next message from a member belongs to the collective that
//!    this one waits for. Waits cannot form a cycle: before the others began the first open collective, they
//!    waited only in earlier ones.
//! 3. Between replicas sums of gradients travel too, and may come first: they wait in the inbox of the replicas'
//!    exchanges.
//! 4. At the end of a row each member tells the others ([`TensorGroup::end_row`], [`TensorGroup::take_row_ends`]);
//!    `execute/README.md` says why.
//! 5. Inside a stage's code an error cannot be returned: it unwinds as the payload of a panic that prints nothing,
//!    up to the executor, which returns it.

use super::group::TensorGroup;
use crate::link::{Activity, Header, Link, LinkError, Message, MessageKind};
use crate::payload::{AnyTensor, HostValue, Payload, PayloadPart};
use crate::stage::is_seeding;
use burn_pipeline_plan::plan::StageId;

/// What a member says at the end of its row.
const ROW_END: &str = "the end of its row";

impl TensorGroup {
    /// Sends each other member the tensor for it, if there is one, without waiting. `what` is the collective, with
    /// shape and element type of this member's tensor. `tensor_for` runs while the link is locked, so it must not use
    /// the group.
    ///
    /// # Panics
    /// Unwinds with a [`LinkError`] if another rank failed.
    pub(super) fn send_each(&self, what: &str, tensor_for: impl Fn(usize) -> Option<AnyTensor>) {
        if self.absent {
            return;
        }
        self.over_link(|link, activity| {
            let (deadline, header, ours) = (self.set.deadline(), header(activity), place(activity, what));
            for (member, peer) in self.set.others() {
                let Some(tensor) = tensor_for(member) else { continue };
                let parts = [PayloadPart::Host(HostValue::Text(ours.clone())), PayloadPart::Tensor(tensor)];
                link.send(peer, Message { header, payload: Payload::from_parts(parts) }, deadline)?;
            }
            Ok(())
        })
    }

    /// Waits for the tensors that the members in `from` sent in the same collective, and returns them in that
    /// order, without this member's own. If the others do not exist, `absent` gives what they would have sent.
    ///
    /// # Panics
    /// Unwinds with a [`LinkError`] if a member runs something else, failed, left or did not answer.
    pub(super) fn receive_each(
        &self,
        what: &str,
        from: impl Iterator<Item = usize>,
        absent: impl Fn(usize) -> AnyTensor,
    ) -> Vec<AnyTensor> {
        let others = from.filter(|member| *member != self.member());
        if self.absent {
            return others.map(absent).collect();
        }
        self.over_link(|link, activity| {
            let (rank, header, ours) = (link.rank(), header(activity), place(activity, what));
            let receive = |member: usize| {
                let peer = self.set.ranks()[member];
                link.set_activity(Activity::Waiting(header, peer));
                // Each wait has a deadline of its own: the one before may have been extended beyond it.
                let received = self.set.take(link, peer, header, self.set.deadline());
                let (theirs, tensor) = read(received.map_err(|error| self.elsewhere(error, &ours))?);
                match tensor {
                    Some(PayloadPart::Tensor(tensor)) if theirs == ours => Ok(tensor),
                    _ => Err(self.unlike(rank, peer, ours.clone(), theirs)),
                }
            };
            others.map(receive).collect()
        })
    }

    /// Tells the other members that this one's row has ended. With the link's own collectives
    /// ([`Link::collectives`]) the members meet there. All members call it.
    ///
    /// # Errors
    /// Returns [`LinkError`] if a member was in a collective of the row before, failed, left or did not answer.
    pub(crate) fn end_row(&self) -> Result<(), LinkError> {
        if self.is_alone() {
            return Ok(());
        }
        self.set.over_link(|link, activity| {
            let deadline = self.set.deadline();
            if self.by_link {
                self.waits(link, activity);
                return self.collectives(link)?.meet(ROW_END.to_owned(), deadline);
            }
            let header = Header::of(MessageKind::RowEnd);
            let end = || Message { header, payload: Payload::default() };
            self.set.others().try_for_each(|(_, peer)| link.send(peer, end(), deadline))
        })
    }

    /// Takes the others' messages of the end of the row. All members call it.
    pub(crate) fn take_row_ends(&self) -> Result<(), LinkError> {
        if self.is_alone() || self.by_link {
            return Ok(());
        }
        self.set.over_link(|link, _| {
            let header = Header::of(MessageKind::RowEnd);
            self.set.others().try_for_each(|(_, peer)| {
                link.set_activity(Activity::Waiting(header, peer));
                let received = link.receive(peer, header, self.set.deadline());
                received.map(drop).map_err(|error| self.elsewhere(error, ROW_END))
            })
        })
    }

    /// The error of two members in different places.
    pub(super) fn unlike(&self, rank: usize, peer: usize, ours: String, theirs: String) -> LinkError {
        match self.is_of_replicas() {
            true => LinkError::Replicas { rank, peer, ours, theirs },
            false => LinkError::Members { rank, peer, ours, theirs },
        }
    }

    /// Turns a message out of order into the error that says where its sender is.
    fn elsewhere(&self, error: LinkError, ours: &str) -> LinkError {
        match error {
            LinkError::Order { rank, peer, got, .. } => self.unlike(rank, peer, ours.to_owned(), got),
            other => other,
        }
    }

    /// Calls `f` with this rank's end of the link and its activity; an error unwinds.
    ///
    /// # Panics
    /// Panics while a layer is seeded: ranks that are threads would wait for each other's turns.
    pub(super) fn over_link<T>(&self, f: impl FnOnce(&mut dyn Link, Activity) -> Result<T, LinkError>) -> T {
        assert!(
            !is_seeding(),
            "a layer exchanges values with other ranks inside of `init_seeded`, which makes it more than once and in \
             turns: make the whole layer with `init_seeded`, and cut it afterwards (in a list of layers: `Layer::cut`)"
        );
        self.set.over_link(f).unwrap_or_else(|error| std::panic::resume_unwind(Box::new(error)))
    }
}

/// Describes a collective and its task.
pub(super) fn place(activity: Activity, what: &str) -> String {
    match activity {
        Activity::Task(task) => format!("{task}, {what}"),
        Activity::Building(stage) => format!("building stage {stage}, {what}"),
        _ => what.to_owned(),
    }
}

pub(super) fn header(activity: Activity) -> Header {
    let (stage, microbatch) = match activity {
        Activity::Task(task) => (task.stage(), task.microbatch().unwrap_or_default()),
        Activity::Building(stage) => (stage, 0),
        _ => (StageId::new(0), 0),
    };
    Header { kind: MessageKind::Member, stage, microbatch }
}

/// Reads the text of a message and its content.
pub(super) fn read(payload: Payload) -> (String, Option<PayloadPart>) {
    let mut parts = payload.into_parts();
    match (parts.next(), parts.next(), parts.next()) {
        (Some(PayloadPart::Host(HostValue::Text(text))), Some(part), None) => (text, Some(part)),
        _ => ("a message of another form".to_owned(), None),
    }
}
