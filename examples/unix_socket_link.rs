//! A user-defined transport: ranks as processes of one machine, connected by Unix sockets.
//!
//! `burn_pipeline::link::kit` has what all transports share: envelopes, a mailbox whose waits end at their
//! deadlines, and an [`Endpoint`] that turns them into a link. A transport moves bytes and implements [`Peers`]:
//!
//! 1. Every rank listens at its own socket in a common folder, and connects to the ranks below it.
//! 2. Two threads serve each connection. One writes queued messages, so that a send never waits. One reads, and
//!    puts what arrives into the mailbox.
//! 3. A connection that ends without [`Envelope::Close`] means a lost rank: every rank returns an error that names
//!    it.
//!
//! The program runs the conformance suite over it. To train over it, pass each process's end to
//! `Builder::build_rank`.

#![allow(clippy::print_stdout, reason = "it is a program")]

use burn::tensor::{Bytes, Device};
use burn_pipeline::link::kit::{Endpoint, Envelope, Frame, Mailbox, Peers};
use burn_pipeline::link::{Failure, LinkError, Monitor, conformance};
use std::io::{BufReader, BufWriter, Error, ErrorKind, Read, Result, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

/// The other ranks, each at the other end of a socket.
#[derive(Debug)]
struct Sockets {
    mailbox: Mailbox,
    /// The queue to each other rank; `None` for this one.
    queues: Vec<Option<Sender<Outgoing>>>,
    writers: Mutex<Vec<JoinHandle<()>>>,
}

/// An envelope, and the bytes of a message's tensors.
type Outgoing = (Envelope, Vec<Bytes>);

impl Peers for Sockets {
    fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    fn send(&self, to: usize, envelope: Envelope, bodies: Vec<Bytes>) -> std::result::Result<(), LinkError> {
        if let Some(queue) = &self.queues[to] {
            // Fails if the connection is lost, which the reading thread reports.
            let _ = queue.send((envelope, bodies));
        }
        Ok(())
    }

    fn close(&self) {
        self.send_all(&Envelope::Close);
        // Earlier messages are still written: each thread ends after its `Close`.
        let writers = std::mem::take(&mut *self.writers.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        writers.into_iter().for_each(|writer| drop(writer.join()));
    }
}

/// Connects to the other ranks through sockets in `folder`. Received tensors are moved to `device`.
fn connect(folder: &Path, rank: usize, ranks: usize, device: Device, timeout: Duration) -> Result<Endpoint<Sockets>> {
    let streams = open_sockets(folder, rank, ranks, Instant::now() + timeout)?;
    let (mut queues, mut receivers) = (Vec::new(), Vec::new());
    for stream in &streams {
        let (queue, outgoing) = channel();
        queues.push(stream.is_some().then_some(queue));
        receivers.push(outgoing);
    }
    let sockets = Arc::new(Sockets { mailbox: Mailbox::new(rank, ranks), queues, writers: Mutex::default() });
    let mut writers = Vec::new();
    for ((peer, stream), outgoing) in streams.into_iter().enumerate().zip(receivers) {
        let Some(stream) = stream else { continue };
        // A peer that is stopped must not keep this rank from ending.
        stream.set_write_timeout(Some(timeout))?;
        let (reading, shared) = (stream.try_clone()?, sockets.clone());
        spawn(move || shared.read_all(peer, reading));
        writers.push(spawn(move || write_all(&stream, &outgoing)));
    }
    *sockets.writers.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = writers;
    Ok(Endpoint::new(sockets, device))
}

/// One socket to every other rank.
fn open_sockets(folder: &Path, rank: usize, ranks: usize, deadline: Instant) -> Result<Vec<Option<UnixStream>>> {
    let path = |rank: usize| folder.join(format!("rank-{rank}"));
    let listener = UnixListener::bind(path(rank))?;
    let mut streams: Vec<Option<UnixStream>> = (0..ranks).map(|_| None).collect();
    for (peer, place) in streams.iter_mut().enumerate().take(rank) {
        let mut stream = retry(deadline, || UnixStream::connect(path(peer)))?;
        stream.write_all(&(rank as u64).to_le_bytes())?;
        *place = Some(stream);
    }
    listener.set_nonblocking(true)?;
    for _ in rank + 1..ranks {
        let (mut stream, _) = retry(deadline, || listener.accept())?;
        stream.set_nonblocking(false)?;
        let mut peer = [0; 8];
        stream.read_exact(&mut peer)?;
        let place = streams.get_mut(u64::from_le_bytes(peer) as usize).filter(|place| place.is_none());
        *place.ok_or(ErrorKind::InvalidData)? = Some(stream);
    }
    std::fs::remove_file(path(rank))?; // nobody else connects
    Ok(streams)
}

/// Repeats until success or the deadline: the other rank may not have started yet.
fn retry<T>(deadline: Instant, attempt: impl Fn() -> Result<T>) -> Result<T> {
    loop {
        match attempt() {
            Err(_) if Instant::now() < deadline => sleep(Duration::from_millis(2)),
            result => return result,
        }
    }
}

/// Writes queued messages: the length of the envelope, the envelope, and the tensors, whose lengths are in its
/// frame.
fn write_all(stream: &UnixStream, outgoing: &Receiver<Outgoing>) {
    let mut output = BufWriter::new(stream);
    for (envelope, bodies) in outgoing {
        let bytes = envelope.write();
        let mut written = output.write_all(&(bytes.len() as u64).to_le_bytes()).and_then(|()| output.write_all(&bytes));
        for body in &bodies {
            written = written.and_then(|()| output.write_all(body));
        }
        // If the connection is lost, the reading thread reports it.
        if written.and_then(|()| output.flush()).is_err() || envelope == Envelope::Close {
            return;
        }
    }
}

impl Sockets {
    /// Reads from a rank until it closes the link.
    fn read_all(&self, from: usize, stream: UnixStream) {
        let mut input = BufReader::new(stream);
        loop {
            match self.read(from, &mut input) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    let message = format!("its connection to rank {} ended: {error}", self.mailbox.rank);
                    return self.abort(Failure { rank: from, message });
                }
            }
        }
    }

    /// Reads one envelope. Returns false if it closes the link.
    fn read(&self, from: usize, input: &mut impl Read) -> Result<bool> {
        let mut length = [0; 8];
        input.read_exact(&mut length)?;
        let mut bytes = Vec::new();
        input.take(u64::from_le_bytes(length)).read_to_end(&mut bytes)?;
        let envelope = Envelope::read(&bytes).ok_or(ErrorKind::InvalidData)?;
        let open = envelope != Envelope::Close;
        if let Envelope::Message(frame) = &envelope {
            let frame = Frame::read(frame).map_err(Error::other)?;
            let mut bodies = frame.buffers().map_err(Error::other)?;
            bodies.iter_mut().try_for_each(|body| input.read_exact(body))?;
            self.mailbox.deliver(from, (frame, bodies));
        } else if let Some(reply) = self.mailbox.handle(from, envelope) {
            self.send(from, reply, Vec::new()).map_err(Error::other)?;
        }
        Ok(open)
    }
}

/// Runs every case of the conformance suite with `ranks` ranks, each a thread with its own end of a new link.
fn run_suite(ranks: usize) {
    let folder = std::env::temp_dir().join(format!("unix-socket-link-{}-{ranks}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the folder for temporary files is writable");
    let timeout = Duration::from_secs(30);
    let end = |rank| connect(&folder, rank, ranks, Device::flex(), timeout).expect("all ranks connect");
    conformance::run_on_threads(ranks, || end);
    std::fs::remove_dir(&folder).expect("every rank has removed its socket");
}

fn main() {
    for ranks in [2, 3] {
        run_suite(ranks);
        println!("{ranks} ranks: all {} cases of the conformance suite pass", conformance::CASES.len());
    }
}

#[test]
fn unix_sockets_are_a_link() {
    run_suite(3);
}
