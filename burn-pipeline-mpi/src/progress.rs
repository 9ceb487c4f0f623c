//! The progress thread: the only thread that calls MPI. It moves messages while the ranks' own threads compute.
//!
//! 1. It executes commands: open a link, send, close, end. It stops serving a link that all
//!    ranks have closed.
//! 2. Envelopes that have arrived are found by a matched probe and received. A message's tensors are received after
//!    its envelope, in order, straight into the memory that becomes the tensor. If messages repeat, that memory is
//!    posted before they arrive (`incoming.rs`).
//! 3. Complete messages go to the link's mailbox, where a computing thread waits for them.
//! 4. Without work it pauses: a few turns with a yield, then short sleeps, or longer ones if no rank waits. After
//!    it has woken a thread it sleeps until a command arrives, so that the woken thread gets its core.

use crate::incoming::ReceiveCounters;
use crate::traffic::{REPORT_TIMEOUT, Traffic};
use burn::tensor::Bytes;
use burn_pipeline::link::kit::{Envelope, Mailbox};
use mpi::environment::Universe;
use mpi::topology::{Color, Communicator, SimpleCommunicator};
use std::mem::forget;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::{Duration, Instant};

/// How many turns without work only yield, while this rank computes.
const EAGER_TURNS: u32 = 50;
/// The same while this rank waits and its core is free: a sleep would take longer than a message.
const EAGER_TURNS_WAITED: u32 = 1000;
/// The pause while a thread waits or a transfer is in flight.
const SHORT_PAUSE: Duration = Duration::from_micros(50);
/// The pause while no thread waits.
const LONG_PAUSE: Duration = Duration::from_micros(500);
/// The pause after a thread was woken, unless a command arrives. If there are no more cores than ranks, the
/// scheduler lets a thread that is always awake keep its core until the end of its slice, some milliseconds,
/// however often it yields. A shorter pause would end before the thread sleeps at all.
const HAND_OVER: Duration = Duration::from_micros(20);

/// A command to the progress thread.
pub(crate) enum Command {
    /// Open a link over the ranks that pass the same colour. All ranks do so, in the same order.
    Open { color: i32, opened: Sender<Opened> },
    /// Send an envelope and a message's tensors.
    Send { link: usize, to: usize, envelope: Envelope, bodies: Vec<Bytes> },
    /// This rank's end of the link is dropped.
    Close { link: usize },
    /// End the thread.
    Leave(Leave),
}

/// How the thread ends: all links are closed, and the other ranks have the time `within` to close theirs. Then MPI
/// is finalised, or the whole job is aborted with a code; the sender is used just before that.
pub(crate) struct Leave {
    pub(crate) within: Duration,
    pub(crate) abort: Option<(i32, Sender<()>)>,
}

/// The link over all ranks that exists from the start: ranks meet on it before they open others.
pub(crate) const LOBBY: usize = 0;

/// An open link.
pub(crate) struct Opened {
    pub(crate) link: usize,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) counters: Arc<ReceiveCounters>,
}

/// The body of the thread: passes the lobby to `started`, and ends at [`Command::Leave`], or when no sender of
/// commands is left.
pub(crate) fn run(universe: Universe, commands: &Receiver<Command>, started: &Sender<Opened>) {
    let world = universe.world();
    let mut progress = Progress { links: Vec::new(), complete: true, idle: 0, woken: false, world };
    // The lobby's messages mix with no other MPI user's. Like `MPI_Init`, this waits for all processes.
    let lobby = progress.open(progress.world.duplicate());
    // This fails if the caller has given up.
    let _ = started.send(lobby);
    let complete = progress.serve(commands).is_some_and(|leave| {
        let complete = progress.leave(commands, &leave);
        if let Some((code, aborting)) = leave.abort {
            let _ = aborting.send(());
            progress.world.abort(code);
        }
        complete
    });
    // Freeing communicators and finalising wait for all ranks. If one failed, they might never return.
    forget(progress);
    if !complete {
        forget(universe);
    }
}

struct Progress {
    world: SimpleCommunicator,
    /// By number; `None` for a link that has ended.
    links: Vec<Option<Traffic>>,
    /// True if every ended link was closed by all ranks, and none of them ends the job.
    complete: bool,
    /// Turns in which nothing moved.
    idle: u32,
    /// True if the last turn woke a thread.
    woken: bool,
}

impl Progress {
    /// Works until [`Command::Leave`]; `None` if no sender of commands is left.
    fn serve(&mut self, commands: &Receiver<Command>) -> Option<Leave> {
        loop {
            match self.next_command(commands) {
                Ok(Command::Leave(leave)) => return Some(leave),
                Ok(command) => {
                    self.execute(command);
                    self.idle = 0;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
            self.turn();
        }
    }

    fn next_command(&mut self, commands: &Receiver<Command>) -> Result<Command, RecvTimeoutError> {
        if std::mem::take(&mut self.woken) {
            return commands.recv_timeout(HAND_OVER);
        }
        let waited = self.links.iter().flatten().any(|link| link.mailbox.is_waiting());
        if self.idle > if waited { EAGER_TURNS_WAITED } else { EAGER_TURNS } {
            let urgent = self.links.iter().flatten().any(Traffic::is_urgent);
            return commands.recv_timeout(if urgent { SHORT_PAUSE } else { LONG_PAUSE });
        }
        if self.idle > 0 {
            std::thread::yield_now();
        }
        commands.try_recv().map_err(|error| match error {
            TryRecvError::Empty => RecvTimeoutError::Timeout,
            TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
        })
    }

    fn turn(&mut self) {
        // Every link gets its turn: `any` would stop at the first with work.
        let (mut busy, mut woken) = (false, false);
        for link in self.links.iter_mut().flatten() {
            busy |= link.turn();
        }
        for link in self.links.iter_mut().flatten() {
            woken |= link.has_woken();
        }
        for link in &mut self.links {
            let Some(over) = link.take_if(|link| link.is_done() || link.is_lost()) else { continue };
            self.complete &= over.is_done() && !over.job_ends;
            // Freeing its communicators would wait for all ranks.
            forget(over);
        }
        self.idle = if busy { 0 } else { self.idle.saturating_add(1) };
        self.woken = woken;
    }

    fn open(&mut self, communicator: SimpleCommunicator) -> Opened {
        let traffic = Traffic::new(communicator);
        let (mailbox, counters) = (traffic.mailbox.clone(), traffic.counters.clone());
        self.links.push(Some(traffic));
        Opened { link: self.links.len() - 1, mailbox, counters }
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Open { color, opened } => {
                // All ranks are about to call this: they have met in the lobby.
                let communicator = self.world.split_by_color(Color::with_value(color));
                // Every rank passes a colour, so every rank gets a communicator.
                let Some(communicator) = communicator else { return };
                // This fails if the caller has given up.
                let _ = opened.send(self.open(communicator));
            }
            Command::Send { link, to, envelope, bodies } => {
                if let Some(link) = self.link(link) {
                    link.send(to, envelope, bodies);
                }
            }
            Command::Close { link } => self.link(link).into_iter().for_each(Traffic::drop_end),
            Command::Leave(_) => {}
        }
    }

    /// Returns a link that has not ended.
    fn link(&mut self, link: usize) -> Option<&mut Traffic> {
        self.links.get_mut(link)?.as_mut()
    }

    /// Closes all links and waits until the other ranks have closed theirs. Returns true if all did, so that MPI
    /// can be finalised; false if one of them aborts: after a rank has finalised, `MPI_Abort` can make Open MPI's
    /// `mpirun` crash or hang. So a rank that aborts says so first.
    fn leave(&mut self, commands: &Receiver<Command>, leave: &Leave) -> bool {
        if leave.abort.is_some() {
            self.link(LOBBY).into_iter().for_each(Traffic::announce_end);
        }
        self.links.iter_mut().flatten().for_each(Traffic::close);
        // `Mpi` itself holds the lobby's end.
        self.link(LOBBY).into_iter().for_each(Traffic::drop_end);
        let since = Instant::now();
        loop {
            while let Ok(command) = commands.try_recv() {
                self.execute(command);
            }
            self.turn();
            if self.links.iter().all(Option::is_none) {
                return self.complete;
            }
            let failed = !self.complete || self.links.iter().flatten().any(|link| link.mailbox.has_failed());
            let within = if failed { leave.within.min(REPORT_TIMEOUT) } else { leave.within };
            if since.elapsed() >= within {
                return false;
            }
            std::thread::sleep(SHORT_PAUSE);
        }
    }
}
