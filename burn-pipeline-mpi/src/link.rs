//! One rank's end of a link over MPI.

use crate::incoming::ReceiveCounters;
use crate::progress::{Command, Opened};
use crate::traffic::Primer;
use burn::tensor::{Bytes, Device};
use burn_pipeline::link::kit::{Endpoint, Envelope, Mailbox, Packed, Peers, same_groups};
use burn_pipeline::link::{ExpectedMessage, Header, Link, LinkError, Message};
use burn_pipeline::stage::Payload;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

/// One rank's end of a link over MPI; [`Mpi::link`](crate::Mpi::link) opens it.
///
/// Sends are unbounded: messages wait in this process's memory until the receiver takes them.
#[derive(Debug)]
pub struct MpiLink {
    endpoint: Endpoint<Outbox>,
    counters: Arc<ReceiveCounters>,
    /// The groups that were formed.
    groups: Vec<Vec<usize>>,
}

/// The other ranks, through the progress thread.
#[derive(Debug)]
struct Outbox {
    link: usize,
    mailbox: Arc<Mailbox>,
    commands: Sender<Command>,
}

impl Outbox {
    fn command(&self, command: Command) -> Result<(), LinkError> {
        self.commands.send(command).map_err(|_| LinkError::Closed {
            rank: self.mailbox.rank,
            message: "MPI has ended; drop `Mpi` after the pipelines that use it".to_owned(),
        })
    }
}

impl Peers for Outbox {
    fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    fn send(&self, to: usize, envelope: Envelope, bodies: Vec<Bytes>) -> Result<(), LinkError> {
        self.command(Command::Send { link: self.link, group: None, to, envelope, bodies })
    }

    fn close(&self) {
        // If MPI has ended, nothing is left to close.
        let _ = self.command(Command::Close { link: self.link });
    }
}

impl MpiLink {
    pub(crate) fn new(opened: Opened, commands: Sender<Command>, device: Device) -> Self {
        let Opened { link, mailbox, counters } = opened;
        let endpoint = Endpoint::new(Arc::new(Outbox { link, mailbox, commands }), device);
        Self { endpoint, counters, groups: Vec::new() }
    }

    /// Counts how the receives of this link's messages were posted, except within groups. It continues to count.
    pub fn receive_counters(&self) -> Arc<ReceiveCounters> {
        self.counters.clone()
    }

    /// Sends a packed message. A message to several ranks is then read from its device once.
    ///
    /// # Errors
    /// As [`Link::send`].
    pub fn send_packed(&mut self, to: usize, packed: Packed) -> Result<(), LinkError> {
        self.endpoint.send_packed(to, packed)
    }

    fn command(&self, command: impl FnOnce(usize) -> Command) -> Result<(), LinkError> {
        let outbox = self.endpoint.peers();
        outbox.command(command(outbox.link))
    }

    /// Checks that a group has both this rank and another one.
    fn check_group(&self, group: usize, other: usize) -> Result<(), LinkError> {
        let rank = self.rank();
        match self.groups.get(group) {
            Some(ranks) if ranks.contains(&rank) && ranks.contains(&other) => Ok(()),
            _ => Err(LinkError::NoSuchGroup { rank, group, other }),
        }
    }
}

impl Link for MpiLink {
    burn_pipeline::forward_link!(endpoint: rank, ranks, monitor, to_device, set_activity);
    burn_pipeline::forward_link!(endpoint: send, receive, probe, all_gather, abort);

    fn expect(&mut self, messages: &[ExpectedMessage]) -> Result<(), LinkError> {
        let me = self.rank();
        let primer = |expected: &ExpectedMessage| {
            let incoming = expected.to == me;
            let peer = self.endpoint.mailbox().known(if incoming { expected.from } else { expected.to }).ok()?;
            Some(Primer { peer, incoming, frame: expected.frame()? })
        };
        let frames = messages.iter().filter_map(primer).collect();
        self.command(|link| Command::Expect { link, frames })
    }

    fn send_in(&mut self, group: usize, to: usize, message: Message, _: Instant) -> Result<(), LinkError> {
        self.check_group(group, to)?;
        self.endpoint.mailbox().fail_if_failed()?;
        let Packed { frame, bodies } = Packed::new(message).map_err(|source| self.endpoint.wire(to, source))?;
        let envelope = Envelope::Message(frame);
        self.command(|link| Command::Send { link, group: Some(group), to, envelope, bodies })
    }

    fn receive_in(
        &mut self,
        group: usize,
        from: usize,
        header: Header,
        deadline: Instant,
    ) -> Result<Payload, LinkError> {
        self.check_group(group, from)?;
        self.endpoint.receive_within(Some(group), from, header, deadline)
    }

    fn form_groups(&mut self, groups: &[Vec<usize>], deadline: Instant) -> Result<(), LinkError> {
        // Making a communicator waits for all ranks and cannot be cancelled, so it begins only once all ranks are
        // here with the same list.
        same_groups(self, groups, deadline)?;
        for ranks in groups {
            let (formed, answer) = channel();
            self.command(|link| Command::Form { link, ranks: ranks.clone(), formed })?;
            let left = deadline.saturating_duration_since(Instant::now());
            answer.recv_timeout(left).map_err(|_| LinkError::Closed {
                rank: self.rank(),
                message: format!("not all ranks formed the group of ranks {ranks:?} in time"),
            })?;
        }
        // Groups are numbered from the first list on.
        self.groups.extend(groups.iter().cloned());
        Ok(())
    }
}
