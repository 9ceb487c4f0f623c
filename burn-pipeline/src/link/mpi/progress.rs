//! The progress thread: the only one that calls MPI. It moves messages while the ranks' own threads compute.
//!
//! 1. It takes orders: open a link, send, close, end.
//! 2. Letters that have arrived are found by a matched probe and received; a message's tensors are received after
//!    its letter, in order, straight into the memory that becomes the tensor. Where messages repeat, that memory waits
//!    for them: see `coming.rs`.
//! 3. Whole messages go to the link's mailbox, where a computing thread waits for them.
//! 4. With nothing to do it pauses: a few turns giving way, then short sleeps, longer ones while nobody waits.

use super::coming::{BODY, Coming, Incoming, REPEATED, arrived, finish_front};
use super::in_flight::{InFlight, pieces};
use super::letter::Letter;
use super::mailbox::Mailbox;
use crate::link::repeats::{Noted, Repeats};
use crate::link::wire::Outline;
use crate::link::{Activity, Failure, LinkError, Repeat, Watch};
use burn::tensor::Bytes;
use mpi::Tag;
use mpi::datatype::Equivalence;
use mpi::environment::Universe;
use mpi::point_to_point::Source;
use mpi::topology::{Color, Communicator, SimpleCommunicator};
use std::collections::{HashMap, VecDeque};
use std::mem::forget;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::{Duration, Instant};

const LETTER: Tag = 1;

/// Turns without work that only give way to other threads.
const EAGER_TURNS: u32 = 50;
/// The pause while somebody waits or a transfer is on its way.
const SHORT_PAUSE: Duration = Duration::from_micros(50);
/// The pause while nobody waits.
const LONG_PAUSE: Duration = Duration::from_micros(500);

/// How long ranks wait for each other's goodbye once one of them has failed: time to report.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What the progress thread is told to do.
pub(super) enum Order {
    /// Open a link over the ranks that give the same number; all ranks must, in the same order.
    Open { color: i32, opened: Sender<Opened> },
    /// Send a letter, and a message's tensors behind it.
    Send { link: usize, to: usize, letter: Letter, bodies: Vec<Bytes> },
    /// Nothing more is sent or taken on this link.
    Close { link: usize },
    /// End.
    Leave(Leave),
}

/// How to end: goodbyes are said on all links, and awaited for so long; then the whole job is ended with a code, or
/// MPI is finalised.
pub(super) struct Leave {
    pub(super) within: Duration,
    pub(super) kill_job: Option<i32>,
}

/// A link that was opened.
pub(super) struct Opened {
    pub(super) link: usize,
    pub(super) mailbox: Arc<Mailbox>,
}

/// The thread's life: ends when it is told to leave, or when nobody is left who could tell it.
pub(super) fn run(universe: Universe, orders: &Receiver<Order>) {
    let mut progress = Progress { world: universe.world(), links: Vec::new(), idle: 0 };
    let whole = progress.serve(orders).is_some_and(|leave| {
        let whole = progress.leave(orders, leave.within);
        if let Some(code) = leave.kill_job {
            remove_shared_memory();
            progress.world.abort(code);
        }
        whole
    });
    // Freeing communicators and finalising wait for all ranks: where one failed, that might never come back.
    forget(progress);
    if !whole {
        forget(universe);
    }
}

/// Unlinks the shared memory of this job's ranks on this machine, which Open MPI leaves behind when a rank was killed.
/// Who has it open keeps it. Elsewhere, or under another MPI, there is nothing of that name.
fn remove_shared_memory() {
    let job = std::env::var("OMPI_MCA_ess_base_jobid").ok().and_then(|job| job.parse::<u32>().ok());
    let (Some(job), Ok(files)) = (job, std::fs::read_dir("/dev/shm")) else { return };
    let of_job = format!(".{job:x}.");
    for file in files.flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        if name.starts_with("vader_segment.") && name.contains(&of_job) {
            // Another rank may have been faster.
            let _ = std::fs::remove_file(file.path());
        }
    }
}

struct Progress {
    world: SimpleCommunicator,
    links: Vec<Traffic>,
    /// Turns in which nothing happened.
    idle: u32,
}

impl Progress {
    /// Works until told to leave; `None` if nobody is left.
    fn serve(&mut self, orders: &Receiver<Order>) -> Option<Leave> {
        loop {
            match self.next_order(orders) {
                Ok(Order::Leave(leave)) => return Some(leave),
                Ok(order) => {
                    self.obey(order);
                    self.idle = 0;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
            self.turn();
        }
    }

    fn next_order(&self, orders: &Receiver<Order>) -> Result<Order, RecvTimeoutError> {
        if self.idle > EAGER_TURNS {
            let urgent = self.links.iter().any(Traffic::is_urgent);
            return orders.recv_timeout(if urgent { SHORT_PAUSE } else { LONG_PAUSE });
        }
        if self.idle > 0 {
            std::thread::yield_now();
        }
        orders.try_recv().map_err(|error| match error {
            TryRecvError::Empty => RecvTimeoutError::Timeout,
            TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
        })
    }

    fn turn(&mut self) {
        let busy = self.links.iter_mut().filter_map(|link| link.turn().then_some(())).count() > 0;
        self.idle = if busy { 0 } else { self.idle.saturating_add(1) };
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Open { color, opened } => {
                let communicator = self.world.split_by_color(Color::with_value(color));
                // Every colour is a number, so that every rank is in one group.
                let Some(communicator) = communicator else { return };
                let traffic = Traffic::new(communicator);
                let mailbox = traffic.mailbox.clone();
                self.links.push(traffic);
                // A send fails only where the asker has given up.
                let _ = opened.send(Opened { link: self.links.len() - 1, mailbox });
            }
            Order::Send { link, to, letter, bodies } => self.links[link].send(to, &letter, bodies),
            Order::Close { link } => self.links[link].closed = true,
            Order::Leave(_) => {}
        }
    }

    /// Says goodbye on all links and waits for the others' goodbyes; `true` if all came, so that all can finalise.
    fn leave(&mut self, orders: &Receiver<Order>, within: Duration) -> bool {
        self.links.iter_mut().for_each(Traffic::part);
        let since = Instant::now();
        loop {
            while let Ok(order) = orders.try_recv() {
                self.obey(order);
            }
            self.turn();
            if self.links.iter().all(|link| link.closed && link.is_done()) {
                return true;
            }
            let failed = self.links.iter().any(|link| link.mailbox.contents().failed());
            let within = if failed { within.min(LAST_WORDS) } else { within };
            if since.elapsed() >= within {
                return false;
            }
            std::thread::sleep(SHORT_PAUSE);
        }
    }
}

/// One link: a communicator of its own, and what is on its way.
struct Traffic {
    communicator: SimpleCommunicator,
    mailbox: Arc<Mailbox>,
    /// Of each rank: letters on their way, in order.
    letters: Vec<VecDeque<InFlight>>,
    /// Of each rank: messages whose letter is here, in order.
    messages: Vec<VecDeque<Coming>>,
    /// Of each rank: what repeats among its messages.
    incoming: Vec<Incoming>,
    /// To each rank: what repeats among the messages.
    outgoing: Vec<Outgoing>,
    sending: Vec<InFlight>,
    closed: bool,
}

/// What repeats among the messages to one rank.
#[derive(Default)]
struct Outgoing {
    repeats: Repeats,
    /// Transfers that a message under each number takes.
    transfers: HashMap<u16, usize>,
}

impl Traffic {
    fn new(communicator: SimpleCommunicator) -> Self {
        let (rank, ranks) = (communicator.rank() as usize, communicator.size() as usize);
        Self {
            communicator,
            mailbox: Arc::new(Mailbox::new(rank, ranks)),
            letters: (0..ranks).map(|_| VecDeque::new()).collect(),
            messages: (0..ranks).map(|_| VecDeque::new()).collect(),
            incoming: (0..ranks).map(|_| Incoming::default()).collect(),
            outgoing: (0..ranks).map(|_| Outgoing::default()).collect(),
            sending: Vec::new(),
            closed: false,
        }
    }

    /// Sends a letter, and a message's tensors behind it; a message that repeats another goes under a number.
    fn send(&mut self, to: usize, letter: &Letter, bodies: Vec<Bytes>) {
        let bodies: Vec<Bytes> = bodies.into_iter().filter(|body| !body.is_empty()).collect();
        let outline = match letter {
            Letter::Message(frame) => Outline::of(frame),
            _ => None,
        };
        let (mut repeat, mut ends) = (None, None);
        if let Some(outline) = outline {
            let outgoing = &mut self.outgoing[to];
            match outgoing.repeats.note(&outline) {
                Noted::Repeat(number) => {
                    // The whole frame was written, so that the microbatch fits.
                    let short = Repeat { number, microbatch: outline.microbatch }.write();
                    repeat = short.ok().map(|short| (number, Letter::Message(short)));
                }
                Noted::Opens(number) => {
                    let transfers = bodies.iter().map(|body| pieces(body.len())).sum();
                    outgoing.transfers.insert(number, transfers);
                }
                Noted::Ends(number) => ends = Some(number),
                Noted::Whole => {}
            }
        }
        self.end_numbers(to, ends);
        let (tag, letter) =
            repeat.as_ref().map_or((BODY, letter), |(number, short)| (REPEATED + Tag::from(*number), short));
        let process = self.communicator.process_at_rank(to as i32);
        self.sending.push(InFlight::send(&process, LETTER, Bytes::from_elems(letter.write())));
        self.sending.extend(bodies.into_iter().map(|body| InFlight::send(&process, tag, body)));
    }

    /// What waits for messages under these numbers is given nothing, so that it is over.
    fn end_numbers(&mut self, to: usize, numbers: impl IntoIterator<Item = u16>) {
        let process = self.communicator.process_at_rank(to as i32);
        for number in numbers {
            let transfers = self.outgoing[to].transfers.remove(&number).unwrap_or_default();
            let end = |_| InFlight::send_nothing(&process, REPEATED + Tag::from(number));
            self.sending.extend((0..transfers).map(end));
        }
    }

    /// Says goodbye to all others.
    fn part(&mut self) {
        for to in 0..self.outgoing.len() {
            let numbers = self.outgoing[to].repeats.end();
            self.end_numbers(to, numbers);
        }
        self.tell_others(&Letter::Bye);
    }

    fn tell_others(&mut self, letter: &Letter) {
        let me = self.mailbox.rank;
        (0..self.mailbox.ranks).filter(|&rank| rank != me).for_each(|rank| self.send(rank, letter, Vec::new()));
    }

    /// Has work that others wait for?
    fn is_urgent(&self) -> bool {
        self.mailbox.is_waiting() || !self.sending.is_empty() || self.messages.iter().any(|coming| !coming.is_empty())
    }

    /// Has everything gone out, and have all others said goodbye?
    fn is_done(&self) -> bool {
        let byes = &self.mailbox.contents().byes;
        let all_came = self.incoming.iter().all(Incoming::is_over);
        all_came
            && self.sending.is_empty()
            && byes.iter().enumerate().all(|(rank, &bye)| bye || rank == self.mailbox.rank)
    }

    /// Moves everything on as far as it goes without waiting; `true` if anything moved.
    fn turn(&mut self) -> bool {
        let mut busy = false;
        let failure = self.mailbox.contents().outgoing_failure.take();
        if let Some(failure) = failure {
            self.tell_others(&Letter::Failed(failure));
            busy = true;
        }
        while let Some((message, status)) = self.communicator.any_process().immediate_matched_probe_with_tag(LETTER) {
            let length = status.count(u8::equivalent_datatype()) as usize;
            let landing = Bytes::from_elems(vec![0u8; length]);
            self.letters[status.source_rank() as usize].push_back(InFlight::matched(message, landing));
            busy = true;
        }
        for rank in 0..self.letters.len() {
            busy |= self.incoming[rank].clear();
            while let Some(letter) = finish_front(&mut self.letters[rank]) {
                self.read(rank, &letter);
                busy = true;
            }
            while let Some((frame, bodies)) = arrived(&mut self.messages[rank]) {
                self.mailbox.contents().inbox[rank].push_back((frame, bodies));
                self.mailbox.wake();
                busy = true;
            }
        }
        let before = self.sending.len();
        let left = std::mem::take(&mut self.sending).into_iter().filter_map(|transfer| transfer.finish().err());
        self.sending = left.collect();
        busy || self.sending.len() < before
    }

    fn read(&mut self, from: usize, bytes: &[u8]) {
        let Some(letter) = Letter::read(bytes) else {
            return self.fail(from, "it sent what no rank sends; do all ranks run the same build?".to_owned());
        };
        let mut contents = self.mailbox.contents();
        match letter {
            Letter::Message(frame) => {
                drop(contents);
                return self.expect(from, &frame);
            }
            Letter::Row { round, numbers } => {
                let ranks = self.mailbox.ranks;
                contents.rows.entry(round).or_insert_with(|| vec![None; ranks])[from] = Some(numbers);
            }
            Letter::Failed(failure) => drop(contents.failure.get_or_insert(failure)),
            Letter::Ask { question } => {
                drop(contents);
                let activity = self.mailbox.own_activity();
                let waits_for = match activity {
                    Activity::Waiting(_, peer) => Some(peer),
                    _ => None,
                };
                let answer = Letter::Answer { question, waits_for, activity: activity.to_string() };
                return self.send(from, &answer, Vec::new());
            }
            Letter::Answer { question, waits_for, activity } if question == contents.question => {
                contents.answers[from] = Some((activity, waits_for));
            }
            Letter::Answer { .. } => {}
            Letter::Bye => {
                contents.byes[from] = true;
                self.incoming[from].end();
            }
        }
        drop(contents);
        self.mailbox.wake();
    }

    /// Starts to receive the tensors of a message.
    fn expect(&mut self, from: usize, frame: &[u8]) {
        let process = self.communicator.process_at_rank(from as i32);
        match self.incoming[from].expect(&process, frame) {
            Ok(coming) => self.messages[from].push_back(coming),
            Err(source) => {
                let error = LinkError::Wire { rank: self.mailbox.rank, peer: from, source };
                self.fail(from, error.to_string());
                self.mailbox.contents().broken.get_or_insert(error);
                self.mailbox.wake();
            }
        }
    }

    /// Tells everybody that what came from a rank cannot be used.
    fn fail(&mut self, from: usize, message: String) {
        let message = format!("rank {} cannot read what rank {from} sent: {message}", self.mailbox.rank);
        self.mailbox.abort(Failure { rank: from, message });
    }
}
