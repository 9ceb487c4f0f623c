//! One rank's end of a link over NCCL.

use crate::communicator::{self, Collective, Id};
use crate::error::NcclError;
use crate::gpu::Gpu;
use crate::options::NcclOptions;
use crate::order::Order;
use crate::order::Ordering;
use crate::start::Start;
use crate::tensors::{cuda_device, from_cube, into_cube, is_on};
use crate::turn::{Answer, Answered, Collect, Content, Inbox, Slot, Turn};
use burn::tensor::Device;
use burn_cubecl::tensor::CubeTensor;
use burn_pipeline::link::kit::{
    Connections, Endpoint, Frame, Mailbox, Received, Sink, all_reduce, connect_at, connect_over,
};
use burn_pipeline::link::{Activity, Header, Launch, Link, LinkError, Message, Monitor, Rendezvous};
use burn_pipeline::plan::Transport;
use burn_pipeline::stage::{AnyTensor, Payload, PayloadPart, TensorKind};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread whose deadline has passed may take to say so.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// One rank's end of a link over NCCL; see the module's header.
///
/// Sends are unbounded: what is sent stays in the GPU's memory until its receiver's memory has it.
pub struct NcclLink {
    post: Endpoint,
    inbox: Inbox,
    order: Order,
    turns: Sender<Turn>,
    thread: Option<JoinHandle<()>>,
    /// How many groups were formed, and how often each was used.
    formed: usize,
    rounds: BTreeMap<u32, u64>,
    ordered_sums: bool,
}

impl std::fmt::Debug for NcclLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NcclLink(rank {} of {})", self.rank(), self.ranks())
    }
}

impl NcclLink {
    /// Meets the other ranks at rank 0's address and joins them; what the link receives is on `device`, a CUDA device
    /// that no other rank of this process has.
    ///
    /// # Errors
    /// If there is no driver, NCCL or such a device, or the other ranks do not come.
    pub fn connect(rendezvous: &Rendezvous, device: Device, options: NcclOptions) -> Result<Self, NcclError> {
        check(&device, options)?;
        let connections = connect_at(rendezvous, options.timeout)?;
        Self::over(rendezvous.rank, rendezvous.ranks, connections, device, options)
    }

    /// As [`NcclLink::connect`], but the ranks meet over a link that joins them already: MPI's, or that of the threads
    /// of one process. All ranks must call it; the other link is not needed any more then.
    ///
    /// # Errors
    /// As [`NcclLink::connect`], and if the link fails.
    pub fn by_link(link: &mut dyn Link, device: Device, options: NcclOptions) -> Result<Self, NcclError> {
        check(&device, options)?;
        let connections = connect_over(link, options.timeout)?;
        Self::over(link.rank(), link.ranks(), connections, device, options)
    }

    /// The GPU of a process that a launcher started: of those that it sees, the one with its rank on this machine (again
    /// from the first where there are fewer GPUs than ranks).
    ///
    /// # Errors
    /// If there is no driver or no GPU.
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
        let inbox = Inbox::new(ranks);
        let (turns, taken) = channel();
        let mut post = Endpoint::start(rank, ranks, connections, sink(inbox.clone(), turns.clone()))?;
        let joined = Self::begin(&mut post, device.inner(), taken, options);
        let (order, thread) = joined.inspect_err(|error| post.abort(error.to_string()))?;
        let (formed, ordered_sums) = (0, options.ordered_sums);
        let thread = Some(thread);
        Ok(Self { post, inbox, order, turns, thread, formed, rounds: BTreeMap::new(), ordered_sums })
    }

    /// Gives all ranks the id, and starts the thread, which joins them.
    fn begin(
        post: &mut Endpoint,
        device: Device,
        taken: Receiver<Turn>,
        options: NcclOptions,
    ) -> Result<(Order, JoinHandle<()>), NcclError> {
        let deadline = Instant::now() + options.timeout;
        let rank = post.mailbox().rank;
        let own = if rank == 0 { communicator::new_id()?.to_vec() } else { Vec::new() };
        let rows = post.all_gather(own, deadline)?;
        let id = rows.into_iter().next().and_then(|bytes| Id::try_from(bytes).ok());
        let id = id.ok_or_else(|| NcclError::Thread("rank 0 gave no id".to_owned()))?;
        let (cube, index) = cuda_device(&device)?;
        let start = Start { id, index, cube, device, mesh: post.mesh.clone(), options, deadline };
        let (told, answer) = channel();
        let body = move || {
            let (progress, order) = match start.run() {
                Ok((progress, order)) => (Ok(progress), Ok(order)),
                Err(error) => (Err(()), Err(error)),
            };
            // Who asked waits for it.
            let _ = told.send(order);
            if let Ok(progress) = progress {
                progress.run(&taken);
            }
        };
        let spawned = std::thread::Builder::new().name("nccl progress".to_owned()).spawn(body);
        let thread = spawned.map_err(|error| NcclError::Thread(error.to_string()))?;
        // It ends at the deadline by itself, unless a call of the driver's or NCCL's does not come back.
        let left = deadline.saturating_duration_since(Instant::now()) + LAST_WORDS;
        let answered = answer.recv_timeout(left);
        let order = answered.map_err(|error| NcclError::Thread(format!("it has not joined: {error}")))??;
        // From here on every rank has joined, or none goes on.
        post.all_gather(Vec::new(), deadline)?;
        Ok((order, thread))
    }

    /// Sums tensors over a group and gives each member its share, rows `[i * n / members, (i + 1) * n / members)` to the
    /// group's i-th member. The first dimension of every tensor must be a multiple of the number of members.
    ///
    /// All members call it for the same groups in the same order, with tensors of the same shapes and element types.
    ///
    /// # Errors
    /// If another rank failed, the deadline passed, or the lists differ.
    pub fn reduce_scatter(
        &mut self,
        number: usize,
        ranks: &[usize],
        tensors: Vec<AnyTensor>,
        deadline: Instant,
    ) -> Result<Vec<AnyTensor>, LinkError> {
        for (place, tensor) in tensors.iter().enumerate() {
            let rows = tensor.shape().first().copied().unwrap_or(0);
            if tensor.rank() == 0 || !rows.is_multiple_of(ranks.len().max(1)) {
                let reason = format!("tensor {place} has {rows} row(s), which {} members cannot share", ranks.len());
                return Err(LinkError::Lists { rank: self.rank(), peer: self.rank(), reason });
            }
        }
        self.whole(number, ranks, Collective::ShareOfSum, tensors, deadline)
    }

    /// Joins the members' tensors along their first dimension, in rank order, on every member.
    ///
    /// # Errors
    /// As [`NcclLink::reduce_scatter`].
    pub fn all_gather_tensors(
        &mut self,
        number: usize,
        ranks: &[usize],
        tensors: Vec<AnyTensor>,
        deadline: Instant,
    ) -> Result<Vec<AnyTensor>, LinkError> {
        self.whole(number, ranks, Collective::Join, tensors, deadline)
    }

    /// Gives every member the tensors of the group's `root`-th member; the others give tensors of the same shapes and
    /// element types, whose elements are not read.
    ///
    /// # Errors
    /// As [`NcclLink::reduce_scatter`].
    pub fn broadcast(
        &mut self,
        number: usize,
        ranks: &[usize],
        root: usize,
        tensors: Vec<AnyTensor>,
        deadline: Instant,
    ) -> Result<Vec<AnyTensor>, LinkError> {
        self.whole(number, ranks, Collective::Spread { root }, tensors, deadline)
    }

    /// Returns once all ranks have called it.
    ///
    /// # Errors
    /// If another rank failed, or the deadline passed.
    pub fn barrier(&mut self, deadline: Instant) -> Result<(), LinkError> {
        self.post.all_gather(Vec::new(), deadline).map(drop)
    }

    fn whole(
        &mut self,
        number: usize,
        ranks: &[usize],
        operation: Collective,
        tensors: Vec<AnyTensor>,
        deadline: Instant,
    ) -> Result<Vec<AnyTensor>, LinkError> {
        let tensors = tensors.into_iter().map(Some).collect();
        Ok(self.collective(number, ranks, operation, tensors, deadline)?.into_iter().flatten().collect())
    }

    fn collective(
        &mut self,
        number: usize,
        ranks: &[usize],
        operation: Collective,
        tensors: Vec<Option<AnyTensor>>,
        deadline: Instant,
    ) -> Result<Vec<Option<AnyTensor>>, LinkError> {
        let group = number as u32;
        self.post.mailbox().fail_if_failed()?;
        let onto = |tensor: AnyTensor| into_cube(tensor.to_device(&self.order.device));
        let cubes = tensors.into_iter().map(|tensor| tensor.map(onto).transpose()).collect::<Result<_, _>>();
        let tensors: Vec<Option<CubeTensor>> = cubes.map_err(|error| self.closed(&error))?;
        let round = self.rounds.entry(group).or_default();
        let (done, answer) = channel();
        let collect = Collect { group, round: *round, members: ranks.to_vec(), operation, tensors, done };
        *round += 1;
        self.turn(Turn::Collect(collect))?;
        let peer = ranks.iter().copied().find(|&rank| rank != self.rank()).unwrap_or_default();
        let (sums, after) = self.answer(peer, "its part of a collective", &answer, deadline)?;
        self.order.before_use(after.as_ref()).map_err(|error| self.closed(&error))?;
        let back = |sum: CubeTensor| {
            let kind = TensorKind::of(sum.dtype);
            from_cube(kind, sum)
        };
        Ok(sums.into_iter().map(|sum| sum.map(back)).collect())
    }

    /// Waits for the thread's answer; another rank's failure, and the deadline, end it.
    fn answer<T>(&self, peer: usize, what: &str, answer: &Receiver<Answered<T>>, deadline: Instant) -> Answered<T> {
        let ended = || Some(Err(self.ended()));
        let take = || match answer.try_recv() {
            Ok(answered) => Some(answered),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => ended(),
        };
        self.post.wait_for(peer, &|| what.to_owned(), deadline, |_| take())?
    }

    fn turn(&self, turn: Turn) -> Result<(), LinkError> {
        self.turns.send(turn).map_err(|_| self.ended())
    }

    fn ended(&self) -> LinkError {
        LinkError::Closed { rank: self.rank(), message: "the thread that serves it has ended".to_owned() }
    }

    fn closed(&self, error: &NcclError) -> LinkError {
        LinkError::Closed { rank: self.rank(), message: error.to_string() }
    }

    /// Do the tensors go from GPU to GPU? Else the whole message goes over the connection.
    fn is_offered(&self, message: &Message) -> bool {
        let mut tensors = message.payload.tensors().peekable();
        tensors.peek().is_some() && tensors.all(|tensor| is_on(tensor, &self.order.device))
    }
}

/// Device and libraries, before anybody is waited for.
fn check(device: &Device, options: NcclOptions) -> Result<(), NcclError> {
    let (_, index) = cuda_device(device)?;
    Gpu::open(index)?;
    communicator::library()?;
    match options.ordering {
        Ordering::Context if !Gpu::knows_context_marks() => Err(NcclError::NoContextMarks),
        _ => Ok(()),
    }
}

fn tensor_of(part: PayloadPart) -> Option<AnyTensor> {
    match part {
        PayloadPart::Tensor(tensor) => Some(tensor),
        PayloadPart::Tag(_) => None,
    }
}

/// What the threads that read the connections do with what comes.
fn sink(inbox: Inbox, turns: Sender<Turn>) -> impl FnOnce(Arc<Mailbox>) -> Arc<Sink> {
    move |mailbox| {
        // If the thread that takes turns has ended, so has the link.
        Arc::new(move |from, heard| match heard {
            Received::Message(frame, bodies) => {
                let slot = Slot::default();
                slot.fill(Content::Host(bodies));
                inbox.push(from, frame, slot);
                mailbox.wake();
            }
            Received::Offer(frame) => {
                let slot = Slot::default();
                inbox.push(from, frame.clone(), slot.clone());
                let _ = turns.send(Turn::Offered { from, frame, slot });
            }
            Received::Note(note) => drop(turns.send(Turn::Note { from, note })),
        })
    }
}

impl Link for NcclLink {
    fn rank(&self) -> usize {
        self.post.mailbox().rank
    }

    fn ranks(&self) -> usize {
        self.post.mailbox().ranks
    }

    fn transport(&self) -> Transport {
        Transport::Unbounded
    }

    fn monitor(&self) -> Arc<dyn Monitor> {
        self.post.mesh.clone()
    }

    fn to_device(&self, payload: Payload) -> Payload {
        let Ok(payload) = payload.map_tensors(|_, tensor| Ok::<_, Infallible>(tensor.to_device(&self.order.device)));
        payload
    }

    fn set_activity(&mut self, activity: Activity) {
        self.post.mailbox().set_activity(activity);
    }

    fn send(&mut self, to: usize, message: Message, _: Instant) -> Result<(), LinkError> {
        let to = self.post.mailbox().known(to)?;
        self.post.mailbox().fail_if_failed()?;
        if !self.is_offered(&message) && to != self.rank() {
            return self.post.send(to, message);
        }
        let payload = self.to_device(message.payload);
        let message = Message { header: message.header, payload };
        let frame = Frame::of(&message).map_err(|source| self.post.wire(to, source))?;
        let bytes = frame.write().map_err(|source| self.post.wire(to, source))?;
        let tensors: Vec<AnyTensor> = message.payload.into_parts().filter_map(tensor_of).collect();
        let cubes = tensors.into_iter().map(into_cube).collect::<Result<Vec<_>, _>>();
        let tensors = cubes.map_err(|error| self.closed(&error))?;
        let own = (to == self.rank()).then(|| (frame, Slot::default()));
        if let Some((frame, slot)) = &own {
            self.inbox.push(to, frame.clone(), slot.clone());
        }
        self.turn(Turn::Send { to, frame: bytes, tensors, own })
    }

    fn receive(&mut self, from: usize, header: Header, deadline: Instant) -> Result<Payload, LinkError> {
        let from = self.post.mailbox().known(from)?;
        let taken = self.post.wait_for(from, &|| header.to_string(), deadline, |_| self.inbox.take(from))?;
        let (frame, content) = taken;
        self.post.mailbox().check_order(from, header, frame.header())?;
        match content {
            Content::Host(bodies) => {
                let message = frame.message(bodies, &self.order.device);
                Ok(message.map_err(|source| self.post.wire(from, source))?.payload)
            }
            Content::Device(tensors, after) => {
                self.order.before_use(after.as_ref()).map_err(|error| self.closed(&error))?;
                let kinds = frame.tensors().map(|(dtype, _)| TensorKind::of(dtype));
                let tensors = kinds.zip(tensors).map(|(kind, tensor)| from_cube(kind, tensor)).collect();
                Ok(frame.with_tensors(tensors))
            }
        }
    }

    fn all_gather(&mut self, bytes: Vec<u8>, deadline: Instant) -> Result<Vec<Vec<u8>>, LinkError> {
        self.post.all_gather(bytes, deadline)
    }

    fn form_groups(&mut self, groups: &[Vec<usize>], deadline: Instant) -> Result<(), LinkError> {
        // All must have come before the thread stands in a split: until then others may need its transfers.
        self.post.all_gather(Vec::new(), deadline)?;
        let (done, answer): (Answer<()>, _) = channel();
        self.turn(Turn::Form { groups: groups.to_vec(), deadline, done })?;
        self.answer(0, "the forming of groups", &answer, deadline)?;
        self.formed = groups.len();
        Ok(())
    }

    fn all_reduce(
        &mut self,
        number: usize,
        ranks: &[usize],
        tensors: Vec<Option<AnyTensor>>,
        deadline: Instant,
    ) -> Result<Vec<Option<AnyTensor>>, LinkError> {
        if self.ordered_sums || number >= self.formed {
            return all_reduce(self, number, ranks, tensors, deadline);
        }
        self.collective(number, ranks, Collective::Sum, tensors, deadline)
    }

    fn abort(&mut self, message: String) {
        self.post.abort(message);
    }
}

impl Drop for NcclLink {
    fn drop(&mut self) {
        // If the thread has ended there is nothing to close.
        let _ = self.turns.send(Turn::Close);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
