//! One rank's end of a link over TCP.

use super::meeting::{self, Connections};
use super::mesh::{Heard, Mesh, Packet, Sink};
use super::{Place, TcpError};
use crate::link::letter::Letter;
use crate::link::mailbox::{Awaited, Contents, Mailbox};
use crate::link::{Activity, Failure, Header, Link, LinkError, Message, Packed, Watch, WireError};
use crate::plan::Transport;
use crate::stage::Payload;
use burn::tensor::Device;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One rank's end of a link over TCP; see the module's header.
///
/// Sends are unbounded: what is sent waits in this process's memory until the receiver takes it.
#[derive(Debug)]
pub struct TcpLink {
    post: Post,
    device: Device,
}

impl TcpLink {
    /// Meets the other ranks at rank 0's address; what the link receives is brought to `device`.
    ///
    /// `timeout` is the longest that this may take.
    ///
    /// # Errors
    /// If ranks do not come, or strangers do.
    pub fn connect(place: &Place, device: Device, timeout: Duration) -> Result<Self, TcpError> {
        let connections = meeting::at(place, timeout)?;
        Self::over(place.rank, place.ranks, connections, device)
    }

    /// Meets the other ranks of a link, over which they tell each other where they listen. All ranks must call it.
    ///
    /// # Errors
    /// As [`TcpLink::connect`], and if the link fails.
    pub fn by_link(link: &mut dyn Link, device: Device, timeout: Duration) -> Result<Self, TcpError> {
        let connections = meeting::by_link(link, timeout)?;
        Self::over(link.rank(), link.ranks(), connections, device)
    }

    fn over(rank: usize, ranks: usize, connections: Connections, device: Device) -> Result<Self, TcpError> {
        let sink = |mailbox: Arc<Mailbox>| -> Arc<Sink> {
            Arc::new(move |from, heard| {
                // Offers and notes are for links between GPUs.
                if let Heard::Message(frame, bodies) = heard {
                    mailbox.deliver(None, from, (frame, bodies));
                    mailbox.wake();
                }
            })
        };
        Ok(Self { post: Post::start(rank, ranks, connections, sink)?, device: device.inner() })
    }
}

impl Link for TcpLink {
    fn rank(&self) -> usize {
        self.post.mailbox().rank
    }

    fn ranks(&self) -> usize {
        self.post.mailbox().ranks
    }

    fn transport(&self) -> Transport {
        Transport::Unbounded
    }

    fn watch(&self) -> Arc<dyn Watch> {
        self.post.mesh.clone()
    }

    fn bring(&self, payload: Payload) -> Payload {
        let Ok(payload) = payload.map_tensors(|_, tensor| Ok::<_, Infallible>(tensor.to_device(&self.device)));
        payload
    }

    fn announce(&mut self, activity: Activity) {
        self.post.mailbox().announce(activity);
    }

    fn send(&mut self, to: usize, message: Message, _: Instant) -> Result<(), LinkError> {
        self.post.send(to, message)
    }

    fn receive(&mut self, from: usize, header: Header, deadline: Instant) -> Result<Payload, LinkError> {
        let from = self.post.known(from)?;
        let what = || header.to_string();
        let arrived = self.post.wait_for(from, &what, deadline, |contents| contents.take(None, from));
        let (frame, bodies) = arrived?;
        self.post.in_order(from, header, frame.header())?;
        let message = frame.message(bodies, &self.device).map_err(|source| self.post.wire(from, source))?;
        Ok(message.payload)
    }

    fn arrived(&mut self, from: &[usize], deadline: Instant) -> Result<Option<(usize, Header)>, LinkError> {
        self.post.mailbox().arrived(from, deadline)
    }

    fn all_gather(&mut self, bytes: Vec<u8>, deadline: Instant) -> Result<Vec<Vec<u8>>, LinkError> {
        self.post.all_gather(bytes, deadline)
    }

    fn abort(&mut self, message: String) {
        self.post.abort(message);
    }
}

/// What links over a mesh have in common.
#[derive(Debug)]
pub struct Post {
    /// The connections.
    pub mesh: Arc<Mesh>,
    round: u64,
}

impl Post {
    /// Serves the connections; what comes goes where `sink` says, which is told of the mailbox first.
    ///
    /// # Errors
    /// As [`Mesh::start`].
    pub fn start(
        rank: usize,
        ranks: usize,
        connections: Connections,
        sink: impl FnOnce(Arc<Mailbox>) -> Arc<Sink>,
    ) -> Result<Self, TcpError> {
        let mailbox = Arc::new(Mailbox::new(rank, ranks));
        let mesh = Mesh::start(connections, mailbox.clone(), &sink(mailbox))?;
        Ok(Self { mesh, round: 0 })
    }

    /// What has come.
    pub fn mailbox(&self) -> &Mailbox {
        &self.mesh.mailbox
    }

    /// The rank, if there is such a one.
    ///
    /// # Errors
    /// If there is none.
    pub fn known(&self, rank: usize) -> Result<usize, LinkError> {
        let ranks = self.mailbox().ranks;
        if rank < ranks { Ok(rank) } else { Err(LinkError::NoSuchRank { rank, ranks }) }
    }

    /// The error of a message from or to a rank.
    pub fn wire(&self, peer: usize, source: WireError) -> LinkError {
        LinkError::Wire { rank: self.mailbox().rank, peer, source }
    }

    /// Sends a message, its tensors' bytes behind its frame.
    ///
    /// # Errors
    /// As [`Link::send`].
    pub fn send(&self, to: usize, message: Message) -> Result<(), LinkError> {
        let to = self.known(to)?;
        self.mailbox().fail_if_failed()?;
        let Packed { frame, bodies } = Packed::new(message).map_err(|source| self.wire(to, source))?;
        self.mesh.send(to, Packet::Letter(Letter::Message(frame), bodies));
        Ok(())
    }

    /// Waits until `take` gives what came from a rank.
    ///
    /// # Errors
    /// As [`Link::receive`].
    pub fn wait_for<T>(
        &self,
        from: usize,
        what: &dyn Fn() -> String,
        deadline: Instant,
        take: impl FnMut(&mut Contents) -> Option<T>,
    ) -> Result<T, LinkError> {
        let ask = |question| self.mesh.ask(question);
        let awaited = Awaited { peer: &|_| from, what, ask: &ask };
        self.mailbox().wait(deadline, &awaited, take)
    }

    /// Refuses a message that is not the expected one.
    ///
    /// # Errors
    /// If it is not.
    pub fn in_order(&self, from: usize, expected: Header, got: Header) -> Result<(), LinkError> {
        if expected == got {
            return Ok(());
        }
        let (expected, got) = (expected.to_string(), got.to_string());
        Err(LinkError::Order { rank: self.mailbox().rank, peer: from, expected, got })
    }

    /// As [`Link::all_gather`].
    ///
    /// # Errors
    /// As [`Link::all_gather`].
    pub fn all_gather(&mut self, bytes: Vec<u8>, deadline: Instant) -> Result<Vec<Vec<u8>>, LinkError> {
        let mailbox = self.mesh.mailbox.clone();
        mailbox.fail_if_failed()?;
        let round = self.round;
        self.round += 1;
        for rank in self.mesh.others() {
            self.mesh.send(rank, Packet::Letter(Letter::Row { round, bytes: bytes.clone() }, Vec::new()));
        }
        let (me, ranks) = (mailbox.rank, mailbox.ranks);
        mailbox.contents().rows.entry(round).or_insert_with(|| vec![None; ranks])[me] = Some(bytes);
        let missing = |contents: &Contents| {
            let rows = contents.rows.get(&round);
            rows.and_then(|rows| rows.iter().position(Option::is_none)).unwrap_or(me)
        };
        let ask = |question| self.mesh.ask(question);
        let awaited = Awaited { peer: &missing, what: &|| "its losses and norms".to_owned(), ask: &ask };
        mailbox.wait(deadline, &awaited, |contents| {
            let whole = contents.rows.get(&round)?.iter().all(Option::is_some);
            let rows = if whole { contents.rows.remove(&round) } else { None };
            rows.map(|rows| rows.into_iter().flatten().collect())
        })
    }

    /// As [`Link::abort`].
    pub fn abort(&self, message: String) {
        self.mesh.fail(Failure { rank: self.mailbox().rank, message });
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        self.mesh.close();
    }
}
