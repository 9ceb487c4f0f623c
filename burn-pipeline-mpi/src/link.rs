//! One rank's end of a link over MPI.

use crate::coming::ReceiveCounters;
use crate::progress::{Opened, Order};
use crate::traffic::Primer;
use burn::tensor::{Bytes, Device};
use burn_pipeline::link::kit::{Envelope, Mailbox, Packed, same_groups};
use burn_pipeline::link::{Activity, ExpectedMessage, Header, Link, LinkError, Message, Monitor};
use burn_pipeline::plan::Transport;
use burn_pipeline::stage::Payload;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

/// One rank's end of a link over MPI; see the module's header.
///
/// Sends are unbounded: what is sent waits in this process's memory until the receiver takes it.
#[derive(Debug)]
pub struct MpiLink {
    link: usize,
    mailbox: Arc<Mailbox>,
    landings: Arc<ReceiveCounters>,
    orders: Sender<Order>,
    device: Device,
    round: u64,
    /// The groups that were formed.
    groups: Vec<Vec<usize>>,
}

impl MpiLink {
    pub(crate) fn new(opened: Opened, orders: Sender<Order>, device: Device) -> Self {
        let Opened { link, mailbox, landings } = opened;
        Self { link, mailbox, landings, orders, device, round: 0, groups: Vec::new() }
    }

    /// How the messages of this link have landed so far, beside those within groups; it goes on counting.
    pub fn landings(&self) -> Arc<ReceiveCounters> {
        self.landings.clone()
    }

    /// Sends a message that was packed before, as it is: one that goes to several ranks need not be read off its device
    /// for each.
    ///
    /// # Errors
    /// As [`Link::send`].
    pub fn send_packed(&mut self, to: usize, packed: Packed) -> Result<(), LinkError> {
        let to = self.mailbox.known(to)?;
        self.mailbox.fail_if_failed()?;
        let Packed { frame, bodies } = packed;
        self.order(to, Envelope::Message(frame), bodies)
    }

    fn order(&self, to: usize, letter: Envelope, bodies: Vec<Bytes>) -> Result<(), LinkError> {
        self.give(Order::Send { link: self.link, group: None, to, letter, bodies })
    }

    fn give(&self, order: Order) -> Result<(), LinkError> {
        self.orders.send(order).map_err(|_| LinkError::Closed {
            rank: self.mailbox.rank,
            message: "MPI has ended; drop `Mpi` after the pipelines that use it".to_owned(),
        })
    }

    /// A group that has this rank in it, and another one.
    fn group(&self, group: usize, other: usize) -> Result<usize, LinkError> {
        let both = |ranks: &Vec<usize>| ranks.contains(&self.mailbox.rank) && ranks.contains(&other);
        let rank = self.mailbox.rank;
        self.groups.get(group).filter(|ranks| both(ranks)).map(|_| group).ok_or(LinkError::NoSuchGroup {
            rank,
            group,
            other,
        })
    }

    /// Waits for the next message from a rank, on the link or within a group.
    fn next(
        &mut self,
        group: Option<usize>,
        from: usize,
        header: Header,
        deadline: Instant,
    ) -> Result<Payload, LinkError> {
        self.mailbox.receive(group, from, header, &self.device, deadline, &|question| self.ask(question))
    }

    /// Asks all others what they are doing. If MPI has ended nobody answers, which is what the error then says.
    fn ask(&self, question: u64) {
        for rank in self.mailbox.others() {
            let _ = self.order(rank, Envelope::Ask { question }, Vec::new());
        }
    }

    fn wire(&self, peer: usize, source: burn_pipeline::link::WireError) -> LinkError {
        LinkError::Wire { rank: self.mailbox.rank, peer, source }
    }
}

impl Link for MpiLink {
    fn rank(&self) -> usize {
        self.mailbox.rank
    }

    fn ranks(&self) -> usize {
        self.mailbox.ranks
    }

    fn transport(&self) -> Transport {
        Transport::Unbounded
    }

    fn monitor(&self) -> Arc<dyn Monitor> {
        self.mailbox.clone()
    }

    fn to_device(&self, payload: Payload) -> Payload {
        let Ok(payload) = payload.map_tensors(|_, tensor| Ok::<_, Infallible>(tensor.to_device(&self.device)));
        payload
    }

    fn set_activity(&mut self, activity: Activity) {
        self.mailbox.set_activity(activity);
    }

    fn send(&mut self, to: usize, message: Message, _: Instant) -> Result<(), LinkError> {
        let to = self.mailbox.known(to)?;
        self.mailbox.fail_if_failed()?;
        let packed = Packed::new(message).map_err(|source| self.wire(to, source))?;
        self.send_packed(to, packed)
    }

    fn receive(&mut self, from: usize, header: Header, deadline: Instant) -> Result<Payload, LinkError> {
        self.next(None, from, header, deadline)
    }

    fn expect(&mut self, messages: &[ExpectedMessage]) -> Result<(), LinkError> {
        let me = self.mailbox.rank;
        let primer = |expected: &ExpectedMessage| {
            let incoming = expected.to == me;
            let peer = self.mailbox.known(if incoming { expected.from } else { expected.to }).ok()?;
            Some(Primer { peer, incoming, frame: expected.frame()? })
        };
        let frames = messages.iter().filter_map(primer).collect();
        self.give(Order::Expect { link: self.link, frames })
    }

    fn probe(&mut self, from: &[usize], deadline: Instant) -> Result<Option<(usize, Header)>, LinkError> {
        self.mailbox.probe(from, deadline)
    }

    fn send_in(&mut self, group: usize, to: usize, message: Message, _: Instant) -> Result<(), LinkError> {
        let group = Some(self.group(group, to)?);
        self.mailbox.fail_if_failed()?;
        let Packed { frame, bodies } = Packed::new(message).map_err(|source| self.wire(to, source))?;
        self.give(Order::Send { link: self.link, group, to, letter: Envelope::Message(frame), bodies })
    }

    fn receive_in(
        &mut self,
        group: usize,
        from: usize,
        header: Header,
        deadline: Instant,
    ) -> Result<Payload, LinkError> {
        let group = self.group(group, from)?;
        self.next(Some(group), from, header, deadline)
    }

    fn form_groups(&mut self, groups: &[Vec<usize>], deadline: Instant) -> Result<(), LinkError> {
        // Making a communicator waits for all ranks, and cannot be called off: only once all are here, with one list.
        same_groups(self, groups, deadline)?;
        let rank = self.mailbox.rank;
        for ranks in groups {
            let (formed, answer) = channel();
            self.give(Order::Form { link: self.link, ranks: ranks.clone(), formed })?;
            let left = deadline.saturating_duration_since(Instant::now());
            answer.recv_timeout(left).map_err(|_| LinkError::Closed {
                rank,
                message: format!("not all ranks came to form the group of ranks {ranks:?}"),
            })?;
        }
        // Groups are counted from the first list on.
        self.groups.extend(groups.iter().cloned());
        Ok(())
    }

    fn all_gather(&mut self, bytes: Vec<u8>, deadline: Instant) -> Result<Vec<Vec<u8>>, LinkError> {
        self.mailbox.fail_if_failed()?;
        let round = self.round;
        self.round += 1;
        for rank in self.mailbox.others() {
            self.order(rank, Envelope::Gather { round, bytes: bytes.clone() }, Vec::new())?;
        }
        self.mailbox.gather(round, bytes, deadline, &|question| self.ask(question))
    }

    fn abort(&mut self, message: String) {
        self.mailbox.abort(burn_pipeline::link::Failure { rank: self.mailbox.rank, message });
    }
}

impl Drop for MpiLink {
    fn drop(&mut self) {
        // If MPI has ended there is nothing to close.
        let _ = self.orders.send(Order::Close { link: self.link });
    }
}
