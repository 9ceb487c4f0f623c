//! One rank's end of a link over NCCL.

use super::command::{Answered, Command, Own};
use super::communicator::{self, Id};
use super::error::NcclError;
use super::gpu::Gpu;
use super::inbox::{Content, Inbox, Slot};
use super::options::NcclOptions;
use super::order::{Order, Ordering};
use super::progress::CLOSE_TIMEOUT;
use super::start::Start;
use super::tensors::{cuda_device, from_cube, into_cube, is_on};
use crate::host::timeout::Timeout;
use burn::tensor::Device;
use burn_pipeline::link::kit::{Connections, Endpoint, Frame, Mailbox, Mesh, Packed, Received};
use burn_pipeline::link::kit::{LONGEST_TIMEOUT, ended_within};
use burn_pipeline::link::{Collectives, Header, Launch, Link, LinkError, Message, Rendezvous};
use burn_pipeline::payload::{Payload, PayloadPart, TensorKind};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// How much longer than its deadline the thread may take to report that it could not join, or to end.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// One rank's end of a link over NCCL.
///
/// Sends are unbounded: tensors stay in the GPU's memory until they are in the receiver's.
pub struct NcclLink {
    pub(super) endpoint: Endpoint<Mesh>,
    inbox: Inbox,
    pub(super) order: Order,
    commands: Sender<Command>,
    thread: Option<JoinHandle<()>>,
    pub(super) timeout: Timeout,
    pub(super) own: Own,
    /// How often each group was used.
    pub(super) rounds: BTreeMap<u32, u64>,
    ordered_sums: bool,
}

impl std::fmt::Debug for NcclLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NcclLink(rank {} of {})", self.rank(), self.ranks())
    }
}

impl NcclLink {
    /// Connects to the other ranks at rank 0's address and joins them. The link receives on `device`, a CUDA device
    /// that no other rank of this process has.
    ///
    /// # Errors
    /// Returns [`NcclError`] if there is no driver, NCCL or such a device, or ranks are missing when the timeout
    /// passes.
    pub fn connect(rendezvous: &Rendezvous, device: Device, options: NcclOptions) -> Result<Self, NcclError> {
        check(&device, options)?;
        let connections = Mesh::connect_at(rendezvous, options.timeout)?;
        Self::over(rendezvous.rank, rendezvous.ranks, connections, device, options)
    }

    /// As [`NcclLink::connect`], but the ranks exchange their addresses over another link: MPI's, or that of the
    /// threads of one process. All ranks must call it. The other link is not needed afterwards.
    ///
    /// # Errors
    /// As [`NcclLink::connect`], and if the other link fails.
    pub fn by_link(link: &mut dyn Link, device: Device, options: NcclOptions) -> Result<Self, NcclError> {
        check(&device, options)?;
        let connections = Mesh::connect_over(link, options.timeout)?;
        Self::over(link.rank(), link.ranks(), connections, device, options)
    }

    /// The GPU for a process that a launcher started: its index is the process's rank on its machine, modulo the
    /// number of GPUs that the process sees.
    ///
    /// # Errors
    /// Returns [`NcclError`] if there is no driver or no GPU.
    pub fn gpu_of(launch: &Launch) -> Result<Device, NcclError> {
        let gpus = Gpu::count()?;
        launch.local_rank.checked_rem(gpus).map(Device::cuda).ok_or(NcclError::NoDriver)
    }

    fn over(
        rank: usize,
        ranks: usize,
        connections: Connections,
        device: Device,
        options: NcclOptions,
    ) -> Result<Self, NcclError> {
        let options = NcclOptions { timeout: options.timeout.min(LONGEST_TIMEOUT), ..options };
        let inbox = Inbox::new(ranks);
        let (commands, taken) = channel();
        let mailbox = Arc::new(Mailbox::new(rank, ranks));
        let sink = sink(mailbox.clone(), inbox.clone(), commands.clone());
        let mesh = Mesh::start(connections, mailbox, sink)?;
        let mut endpoint = Endpoint::new(mesh, device.clone());
        let timeout = Timeout::new(options.timeout);
        let joined = Self::join(&mut endpoint, device.inner(), taken, options, timeout.clone());
        let (order, thread) = joined.inspect_err(|error| endpoint.abort(error.to_string()))?;
        let (own, rounds) = (Own::default(), BTreeMap::new());
        let ordered_sums = options.ordered_sums;
        Ok(Self { endpoint, inbox, order, commands, thread: Some(thread), timeout, own, rounds, ordered_sums })
    }

    /// Gives all ranks the id, and starts the thread, which joins them.
    fn join(
        endpoint: &mut Endpoint<Mesh>,
        device: Device,
        taken: Receiver<Command>,
        options: NcclOptions,
        timeout: Timeout,
    ) -> Result<(Order, JoinHandle<()>), NcclError> {
        let deadline = Instant::now() + options.timeout;
        let own = if endpoint.rank() == 0 { communicator::new_id()?.to_vec() } else { Vec::new() };
        let ids = endpoint.all_gather(own, deadline)?;
        let id = ids.into_iter().next().and_then(|bytes| Id::try_from(bytes).ok());
        let id = id.ok_or_else(|| NcclError::Thread("rank 0 gave no id".to_owned()))?;
        let (cube, index) = cuda_device(&device)?;
        let mesh = endpoint.peers().clone();
        let start = Start { id, index, cube, device, mesh, options, timeout, deadline };
        let (joined, answer) = channel();
        let body = move || {
            let (progress, order) = match start.run() {
                Ok((progress, order)) => (Some(progress), Ok(order)),
                Err(error) => (None, Err(error)),
            };
            // This fails if the caller has given up.
            let _ = joined.send(order);
            if let Some(progress) = progress {
                progress.run(&taken);
            }
        };
        let spawned = Builder::new().name("nccl progress".to_owned()).spawn(body);
        let thread = spawned.map_err(|error| NcclError::Thread(error.to_string()))?;
        // The thread ends at the deadline by itself, unless a call of the driver or NCCL does not return.
        let left = deadline.saturating_duration_since(Instant::now()) + REPORT_TIMEOUT;
        let answered = answer.recv_timeout(left);
        let order = answered.map_err(|error| NcclError::Thread(format!("it has not joined: {error}")))??;
        // After this, either every rank has joined, or none continues.
        endpoint.barrier(deadline)?;
        Ok((order, thread))
    }

    /// Waits for the thread's answer. Another rank's failure and the deadline end the wait.
    pub(super) fn answer<T>(
        &self,
        peer: usize,
        what: &str,
        answer: &Receiver<Answered<T>>,
        deadline: Instant,
    ) -> Answered<T> {
        let take = || match answer.try_recv() {
            Ok(answered) => Some(answered),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(self.ended())),
        };
        self.endpoint.wait_for(peer, &|| what.to_owned(), deadline, take)?
    }

    pub(super) fn command(&self, command: Command) -> Result<(), LinkError> {
        self.commands.send(command).map_err(|_| self.ended())
    }

    fn ended(&self) -> LinkError {
        LinkError::Closed { rank: self.rank(), message: "the thread that serves it has ended".to_owned() }
    }

    pub(super) fn closed(&self, error: &NcclError) -> LinkError {
        LinkError::Closed { rank: self.rank(), message: error.to_string() }
    }

    /// Returns true if a message's tensors go from GPU to GPU. Otherwise the whole message goes over the
    /// connection.
    fn is_offered(&self, message: &Message) -> bool {
        let mut tensors = message.payload.tensors().peekable();
        tensors.peek().is_some() && tensors.all(|tensor| is_on(tensor, &self.order.device))
    }
}

/// Checks device and libraries before waiting for the other ranks.
fn check(device: &Device, options: NcclOptions) -> Result<(), NcclError> {
    let (_, index) = cuda_device(device)?;
    Gpu::open(index)?;
    communicator::library()?;
    match options.ordering {
        Ordering::Device if !Gpu::has_context_events() => Err(NcclError::NoContextEvents),
        _ => Ok(()),
    }
}

/// Handles what arrives over the connections.
fn sink(mailbox: Arc<Mailbox>, inbox: Inbox, commands: Sender<Command>) -> impl Fn(usize, Received) + Send + Sync {
    // If the thread that takes commands has ended, so has the link.
    move |from, received| match received {
        Received::Message(frame, bodies) => {
            let slot = Slot::default();
            slot.fill(Content::Host(bodies));
            inbox.push(from, frame, slot);
            mailbox.wake();
        }
        Received::Offer(frame) => {
            let slot = Slot::default();
            inbox.push(from, frame.clone(), slot.clone());
            let _ = commands.send(Command::Arrived { from, frame, slot });
        }
        Received::Note(note) => drop(commands.send(Command::Note { from, note })),
    }
}

impl Link for NcclLink {
    burn_pipeline::forward_link!(endpoint: rank, ranks, monitor, to_device, set_activity, all_gather, abort);

    fn send(&mut self, to: usize, message: Message, deadline: Instant) -> Result<(), LinkError> {
        let to = self.endpoint.mailbox().known(to)?;
        self.timeout.hear(deadline);
        self.endpoint.mailbox().fail_if_failed()?;
        let unsent = |source| LinkError::Unsent { rank: self.rank(), peer: to, source };
        if !self.is_offered(&message) && to != self.rank() {
            // The thread sends it after the frames that it has still to send, so messages keep their order,
            // whichever way they go.
            let packed = Packed::new(message).map_err(unsent)?;
            return self.command(Command::SendBytes { to, packed });
        }
        let payload = self.to_device(message.payload);
        let message = Message { header: message.header, payload };
        let frame = Frame::of(&message).map_err(unsent)?;
        let bytes = frame.write().map_err(unsent)?;
        let tensors = message.payload.into_parts().filter_map(|part| match part {
            PayloadPart::Tensor(tensor) => Some(into_cube(tensor)),
            PayloadPart::Host(_) | PayloadPart::Tag(_) => None,
        });
        let tensors = tensors.collect::<Result<Vec<_>, _>>().map_err(|error| self.closed(&error))?;
        if to == self.rank() {
            let slot = Slot::default();
            slot.fill(Content::Device(tensors, None));
            self.inbox.push(to, frame, slot);
            return Ok(());
        }
        self.command(Command::Send { to, frame: bytes, tensors })
    }

    fn receive(&mut self, from: usize, header: Header, deadline: Instant) -> Result<Payload, LinkError> {
        let from = self.endpoint.mailbox().known(from)?;
        self.timeout.hear(deadline);
        let taken = self.endpoint.wait_for(from, &|| header.to_string(), deadline, || self.inbox.take(from))?;
        let (frame, content) = taken;
        LinkError::check_order(self.rank(), from, header, frame.header())?;
        match content {
            Content::Host(bodies) => {
                let message = frame.message(bodies, &self.order.device);
                Ok(message.map_err(|source| self.endpoint.wire(from, source))?.payload)
            }
            Content::Device(tensors, after) => {
                self.order.before_use(after.as_ref()).map_err(|error| self.closed(&error))?;
                let kinds = frame.tensors().map(|(dtype, _)| TensorKind::of(dtype));
                let tensors = kinds.zip(tensors).map(|(kind, tensor)| from_cube(kind, tensor)).collect();
                Ok(frame.with_tensors(tensors))
            }
        }
    }

    fn collectives(&mut self) -> Option<&mut dyn Collectives> {
        if self.ordered_sums { None } else { Some(self) }
    }
}

impl Drop for NcclLink {
    fn drop(&mut self) {
        // Before the thread ends its remaining work, and tells the others that this rank leaves.
        self.endpoint.abort_if_panicking();
        // If the thread has ended, there is nothing to close.
        let _ = self.commands.send(Command::Close);
        if let Some(thread) = self.thread.take() {
            // Offered transfers may take as long as any wait; then communicators are closed, or aborted and their
            // queue emptied.
            let timeout = self.timeout.get() + 2 * CLOSE_TIMEOUT + REPORT_TIMEOUT;
            if ended_within(&thread, timeout) {
                // This waits for its thread-local values too. If it has panicked, the panic was printed.
                let _ = thread.join();
            } else {
                let (rank, seconds) = (self.rank(), timeout.as_secs_f64());
                tracing::error!(rank, seconds, "the link's thread is left: a call of the driver does not return");
            }
        }
    }
}
