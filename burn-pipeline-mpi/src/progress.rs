//! The progress thread: the only one that calls MPI. It moves messages while the ranks' own threads compute.
//!
//! 1. It takes orders: open a link, form a group on it, send, close, end.
//! 2. Letters that have arrived are found by a matched probe and received; a message's tensors are received after
//!    its letter, in order, straight into the memory that becomes the tensor. Where messages repeat, that memory waits
//!    for them: see `coming.rs`.
//! 3. Whole messages go to the link's mailbox, where a computing thread waits for them.
//! 4. With nothing to do it pauses: a few turns giving way, then short sleeps, longer ones while nobody waits. After it
//!    has woken a thread it sleeps, so that the thread gets its core, until that thread has an order for it.

use crate::coming::ReceiveCounters;
use crate::traffic::{Primer, Traffic};
use burn::tensor::Bytes;
use burn_pipeline::link::kit::Envelope;
use burn_pipeline::link::kit::Mailbox;
use mpi::environment::Universe;
use mpi::topology::{Color, Communicator, SimpleCommunicator};
use std::mem::forget;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::{Duration, Instant};

/// Turns without work that only give way to other threads, while this rank computes.
const EAGER_TURNS: u32 = 50;
/// The same while this rank waits, and its core with it: a sleep costs a message more than the message takes.
const EAGER_TURNS_WAITED: u32 = 1000;
/// The pause while somebody waits or a transfer is on its way.
const SHORT_PAUSE: Duration = Duration::from_micros(50);
/// The pause while nobody waits.
const LONG_PAUSE: Duration = Duration::from_micros(500);
/// The pause after somebody was woken, unless an order comes. Where there are no more cores than ranks, the scheduler lets a
/// thread that is always awake keep its core until the end of its slice, some milliseconds, however often it yields. Too
/// short a pause is over before the thread sleeps at all.
const HAND_OVER: Duration = Duration::from_micros(20);

/// How long ranks wait for each other's goodbye once one of them has failed: time to report.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What the progress thread is told to do.
pub(crate) enum Order {
    /// Open a link over the ranks that give the same number; all ranks must, in the same order.
    Open { color: i32, opened: Sender<Opened> },
    /// Form a group of a link's ranks, given in ascending order; all ranks of the link must, in the same order.
    Form { link: usize, ranks: Vec<usize>, formed: Sender<()> },
    /// Send a letter, and a message's tensors behind it; within a group, by its place in the order of groups.
    Send { link: usize, group: Option<usize>, to: usize, letter: Envelope, bodies: Vec<Bytes> },
    /// Take these to be the next messages of a link, from other ranks and to them.
    Expect { link: usize, frames: Vec<Primer> },
    /// Nothing more is sent or taken on this link.
    Close { link: usize },
    /// End.
    Leave(Leave),
}

/// How to end: goodbyes are said on all links, and awaited for so long; then the whole job is ended with a code, after
/// somebody was told that this is about to happen, or MPI is finalised.
pub(crate) struct Leave {
    pub(crate) within: Duration,
    pub(crate) kill_job: Option<(i32, Sender<()>)>,
}

/// A link that was opened.
pub(crate) struct Opened {
    pub(crate) link: usize,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) landings: Arc<ReceiveCounters>,
}

/// The thread's life: ends when it is told to leave, or when nobody is left who could tell it.
pub(crate) fn run(universe: Universe, orders: &Receiver<Order>) {
    let mut progress = Progress { world: universe.world(), links: Vec::new(), idle: 0, woke: false };
    let whole = progress.serve(orders).is_some_and(|leave| {
        let whole = progress.leave(orders, leave.within);
        if let Some((code, told)) = leave.kill_job {
            remove_shared_memory();
            let _ = told.send(());
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
    /// Has it just woken a thread?
    woke: bool,
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

    fn next_order(&mut self, orders: &Receiver<Order>) -> Result<Order, RecvTimeoutError> {
        if std::mem::take(&mut self.woke) {
            return orders.recv_timeout(HAND_OVER);
        }
        let waited = self.links.iter().any(|link| link.mailbox.is_waiting());
        if self.idle > if waited { EAGER_TURNS_WAITED } else { EAGER_TURNS } {
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
        self.woke = self.links.iter_mut().filter_map(|link| link.has_woken().then_some(())).count() > 0;
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Open { color, opened } => {
                let communicator = self.world.split_by_color(Color::with_value(color));
                // Every colour is a number, so that every rank is in one group.
                let Some(communicator) = communicator else { return };
                let traffic = Traffic::new(communicator);
                let (mailbox, landings) = (traffic.mailbox.clone(), traffic.landings.clone());
                self.links.push(traffic);
                // A send fails only where the asker has given up.
                let _ = opened.send(Opened { link: self.links.len() - 1, mailbox, landings });
            }
            Order::Form { link, ranks, formed } => {
                self.links[link].form(&ranks);
                // A send fails only where the asker has given up.
                let _ = formed.send(());
            }
            Order::Send { link, group, to, letter, bodies } => self.links[link].send(group, to, &letter, bodies),
            Order::Expect { link, frames } => self.links[link].prime(frames),
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
