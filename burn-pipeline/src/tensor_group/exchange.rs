//! Messages between the members of a group.
//!
//! Guarantees: a member takes a tensor only from the same collective of the same task, given tensors of one shape and element type;
//! every wait ends at the timeout with an error that names the member, or at once where another rank failed.
//!
//! 1. Each message begins with a text: the task, the collective, and shape and type of what its sender gave to it.
//! 2. A member sends to all that get something of it, and then receives in the order of members. Sends do not wait for their
//!    receives ([`Link::send`]).
//! 3. Between replicas sums of gradients travel too, and may come first: they wait in the inbox of the replicas' exchanges.
//! 4. Inside a stage's code an error cannot be returned: it unwinds as the payload of a panic that prints nothing, up to the
//!    executor, which returns it.

use super::group::TensorGroup;
use crate::link::{Activity, Header, Link, LinkError, Message, MessageKind};
use crate::plan::StageId;
use crate::stage::{AnyTensor, HostValue, Payload, PayloadPart};
use std::time::Instant;

/// What a member sends in one collective.
pub(super) struct Outgoing {
    /// The collective, with shape and element type of what the member gave to it.
    pub(super) what: String,
    /// The tensor for each member; that for this member itself is not sent.
    pub(super) tensors: Vec<Option<AnyTensor>>,
}

impl TensorGroup {
    /// Sends each member its tensor, and returns those of the members `from`, in their order; this one's own is not among them.
    ///
    /// # Panics
    /// Unwinds with a [`LinkError`] if a member is elsewhere, failed, left or did not answer.
    pub(super) fn exchange(&self, outgoing: Outgoing, from: impl Iterator<Item = usize>) -> Vec<AnyTensor> {
        let closed = || {
            let message = "the pipeline was dropped, and the stage's group with it".to_owned();
            Err(LinkError::Closed { rank: self.ranks[self.member], message })
        };
        let end = self.end.as_ref();
        let exchanged =
            end.and_then(|end| end.with(|link, activity| self.exchange_over(link, activity, outgoing, from)));
        exchanged.unwrap_or_else(closed).unwrap_or_else(|error| std::panic::resume_unwind(Box::new(error)))
    }

    fn exchange_over(
        &self,
        link: &mut dyn Link,
        activity: Activity,
        outgoing: Outgoing,
        from: impl Iterator<Item = usize>,
    ) -> Result<Vec<AnyTensor>, LinkError> {
        let (rank, deadline, header) = (link.rank(), Instant::now() + self.timeout, header(activity));
        let ours = place(activity, &outgoing.what);
        for (member, tensor) in outgoing.tensors.into_iter().enumerate().filter(|(member, _)| *member != self.member) {
            let Some(tensor) = tensor else { continue };
            let parts = [PayloadPart::Host(HostValue::Text(ours.clone())), PayloadPart::Tensor(tensor)];
            let message = Message { header, payload: Payload::from_parts(parts) };
            link.send(self.ranks[member], message, deadline)?;
        }
        let receive = |member: usize| {
            let peer = self.ranks[member];
            link.set_activity(Activity::Waiting(header, peer));
            let received = match &self.inbox {
                Some(inbox) => inbox.lock().take(link, peer, header, deadline),
                None => link.receive(peer, header, deadline),
            };
            let (theirs, tensor) = read(received?);
            match tensor {
                Some(tensor) if theirs == ours => Ok(tensor),
                _ => Err(LinkError::Members { rank, peer, ours: ours.clone(), theirs }),
            }
        };
        from.filter(|member| *member != self.member).map(receive).collect()
    }
}

/// A collective with the task that it is in, in words.
fn place(activity: Activity, what: &str) -> String {
    match activity {
        Activity::Task(task) => format!("{task}, {what}"),
        Activity::Building(stage) => format!("building stage {stage}, {what}"),
        _ => what.to_owned(),
    }
}

fn header(activity: Activity) -> Header {
    let (stage, microbatch) = match activity {
        Activity::Task(task) => (task.stage(), task.microbatch().unwrap_or_default()),
        Activity::Building(stage) => (stage, 0),
        _ => (StageId::new(0), 0),
    };
    Header { kind: MessageKind::Member, stage, microbatch }
}

/// The text and the tensor of a message.
fn read(payload: Payload) -> (String, Option<AnyTensor>) {
    let mut parts = payload.into_parts();
    match (parts.next(), parts.next(), parts.next()) {
        (Some(PayloadPart::Host(HostValue::Text(text))), Some(PayloadPart::Tensor(tensor)), None) => {
            (text, Some(tensor))
        }
        _ => ("a message of another form".to_owned(), None),
    }
}
