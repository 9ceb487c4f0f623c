//! A connection to every other rank, served by two threads each: one reads, one writes.
//!
//! On the wire a packet is one byte that says which, the length (4 bytes, little-endian) and that many bytes; behind
//! the frame of a message come its tensors' bytes, as long as the frame says.

use super::TcpError;
use super::meeting::Connections;
use crate::link::letter::Letter;
use crate::link::mailbox::Mailbox;
use crate::link::{Activity, Failure, Frame, LinkError, Watch};
use burn::tensor::Bytes;
use std::io::{BufReader, BufWriter, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Longer letters come from no rank.
const LONGEST: usize = 1 << 30;
/// How long the last packets may take to go out when a link is dropped.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What goes out.
#[derive(Debug)]
pub enum Packet {
    /// A letter, and a message's tensors behind it.
    Letter(Letter, Vec<Bytes>),
    /// The frame of a message whose tensors go another way.
    Offer(Vec<u8>),
    /// What transports agree on.
    Note(Vec<u8>),
    /// Nothing more: the writer ends.
    End,
}

/// What comes in, beside what the mesh handles itself.
#[derive(Debug)]
pub enum Heard {
    /// A whole message.
    Message(Frame, Vec<Bytes>),
    /// The frame of a message whose tensors go another way.
    Offer(Frame),
    /// What transports agree on.
    Note(Vec<u8>),
}

/// Takes what comes in from a rank.
pub type Sink = dyn Fn(usize, Heard) + Send + Sync;

/// The connections of one rank.
#[derive(Debug)]
pub struct Mesh {
    /// What has come.
    pub mailbox: Arc<Mailbox>,
    writers: Vec<Option<Sender<Packet>>>,
    streams: Vec<Option<TcpStream>>,
    written: std::sync::Mutex<Receiver<usize>>,
}

impl Mesh {
    /// Serves the connections; what comes goes to `sink`, in each rank's order.
    ///
    /// # Errors
    /// If a connection is broken, or a thread cannot be started.
    pub fn start(connections: Connections, mailbox: Arc<Mailbox>, sink: &Arc<Sink>) -> Result<Arc<Self>, TcpError> {
        let thread_error = |error: std::io::Error| TcpError::Thread(error.kind());
        let (mut writers, mut readers, mut streams) = (Vec::new(), Vec::new(), Vec::new());
        let (done, written) = channel();
        for (peer, connection) in connections.into_iter().enumerate() {
            let Some(stream) = connection else {
                writers.push(None);
                streams.push(None);
                continue;
            };
            stream.set_nodelay(true).map_err(|error| TcpError::Broken { rank: peer, error: error.kind() })?;
            let cloned = || stream.try_clone().map_err(|error| TcpError::Broken { rank: peer, error: error.kind() });
            let (packets, taken) = channel();
            let (outgoing, done) = (cloned()?, done.clone());
            let body = move || {
                write_all(outgoing, &taken);
                // Nobody waits any more if the link is gone.
                let _ = done.send(peer);
            };
            std::thread::Builder::new().name(format!("tcp to {peer}")).spawn(body).map_err(thread_error)?;
            readers.push((peer, cloned()?));
            writers.push(Some(packets));
            streams.push(Some(stream));
        }
        let mesh = Arc::new(Self { mailbox, writers, streams, written: std::sync::Mutex::new(written) });
        for (peer, stream) in readers {
            let reader =
                Reader { peer, mailbox: mesh.mailbox.clone(), writers: mesh.writers.clone(), sink: sink.clone() };
            let spawn = std::thread::Builder::new().name(format!("tcp from {peer}"));
            spawn.spawn(move || reader.run(stream)).map_err(thread_error)?;
        }
        Ok(mesh)
    }

    /// Sends a packet; to a rank that is gone it goes nowhere, which its reader has said by then, or soon will.
    pub fn send(&self, to: usize, packet: Packet) {
        send(&self.writers, to, packet);
    }

    /// Asks all others what they are doing.
    pub fn ask(&self, question: u64) {
        self.others().for_each(|rank| self.send(rank, Packet::Letter(Letter::Ask { question }, Vec::new())));
    }

    /// All ranks but this one.
    pub fn others(&self) -> impl Iterator<Item = usize> {
        others(&self.writers)
    }

    /// Notes a failure, and tells all others.
    pub fn fail(&self, failure: Failure) {
        fail(&self.mailbox, &self.writers, failure);
    }

    /// Says goodbye, and gives what was sent a moment to go out.
    pub fn close(&self) {
        for rank in self.others() {
            self.send(rank, Packet::Letter(Letter::Bye, Vec::new()));
            self.send(rank, Packet::End);
        }
        let written = self.written.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let since = Instant::now();
        let mut open: Vec<usize> = self.others().collect();
        while !open.is_empty() {
            match written.recv_timeout(LAST_WORDS.saturating_sub(since.elapsed())) {
                Ok(peer) => open.retain(|&rank| rank != peer),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        for rank in open {
            if let Some(stream) = &self.streams[rank] {
                // It does not read: its writer is woken.
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

impl Watch for Mesh {
    fn activity(&self, rank: usize) -> Activity {
        self.mailbox.activity(rank)
    }

    fn progress(&self) -> u64 {
        self.mailbox.progress()
    }

    fn abort(&self, failure: Failure) {
        self.fail(failure);
    }

    fn failure(&self) -> Option<Failure> {
        self.mailbox.failure()
    }
}

fn send(writers: &[Option<Sender<Packet>>], to: usize, packet: Packet) {
    if let Some(Some(writer)) = writers.get(to) {
        let _ = writer.send(packet);
    }
}

fn others(writers: &[Option<Sender<Packet>>]) -> impl Iterator<Item = usize> {
    writers.iter().enumerate().filter_map(|(rank, writer)| writer.as_ref().map(|_| rank))
}

fn fail(mailbox: &Mailbox, writers: &[Option<Sender<Packet>>], failure: Failure) {
    mailbox.abort(failure);
    // It gives the failure out once: only the first one is told.
    let outgoing = mailbox.contents().outgoing_failure.take();
    if let Some(failure) = outgoing {
        others(writers).for_each(|to| send(writers, to, Packet::Letter(Letter::Failed(failure.clone()), Vec::new())));
    }
}

/// The writing thread: until the link ends, or the connection does.
fn write_all(stream: TcpStream, packets: &Receiver<Packet>) {
    let mut out = BufWriter::with_capacity(1 << 16, &stream);
    while let Ok(first) = packets.recv() {
        let mut next = Some(first);
        while let Some(packet) = next {
            if matches!(packet, Packet::End) {
                let _ = out.flush();
                let _ = stream.shutdown(Shutdown::Write);
                return;
            }
            // What cannot be written has nobody to read it: the reader of this connection says so.
            if write(&mut out, packet).is_err() {
                return;
            }
            next = packets.try_recv().ok();
        }
        if out.flush().is_err() {
            return;
        }
    }
}

fn write(out: &mut impl Write, packet: Packet) -> std::io::Result<()> {
    let (kind, bytes, bodies) = match packet {
        Packet::Letter(letter, bodies) => (0, letter.write(), bodies),
        Packet::Offer(frame) => (1, frame, Vec::new()),
        Packet::Note(note) => (2, note, Vec::new()),
        Packet::End => return Ok(()),
    };
    out.write_all(&[kind])?;
    out.write_all(&(bytes.len() as u32).to_le_bytes())?;
    out.write_all(&bytes)?;
    bodies.iter().try_for_each(|body| out.write_all(body))
}

/// The reading thread of one connection.
struct Reader {
    peer: usize,
    mailbox: Arc<Mailbox>,
    writers: Vec<Option<Sender<Packet>>>,
    sink: Arc<Sink>,
}

/// How a connection ends.
enum End {
    /// With a goodbye.
    Bye,
    /// By itself.
    Broken(std::io::Error),
    /// With what no rank sends.
    Garbled(LinkError),
}

impl From<std::io::Error> for End {
    fn from(error: std::io::Error) -> Self {
        End::Broken(error)
    }
}

impl Reader {
    fn run(self, stream: TcpStream) {
        let mut input = BufReader::with_capacity(1 << 16, stream);
        let end = loop {
            if let Err(end) = self.packet(&mut input) {
                break end;
            }
        };
        let (me, peer) = (self.mailbox.rank, self.peer);
        let message = match end {
            End::Bye => return,
            End::Broken(error) => format!(
                "its connection to rank {me} ended without a goodbye ({}): it was killed, or its machine is lost",
                error.kind()
            ),
            End::Garbled(error) => {
                self.mailbox.contents().broken.get_or_insert(error.clone());
                format!("rank {me} cannot read what rank {peer} sent: {error}")
            }
        };
        fail(&self.mailbox, &self.writers, Failure { rank: peer, message });
    }

    fn packet(&self, input: &mut impl Read) -> Result<(), End> {
        let (mut kind, mut length) = ([0], [0; 4]);
        input.read_exact(&mut kind)?;
        input.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > LONGEST {
            return Err(self.garbled());
        }
        let mut bytes = vec![0; length];
        input.read_exact(&mut bytes)?;
        match kind {
            [0] => self.letter(Letter::read(&bytes).ok_or_else(|| self.garbled())?, input),
            [1] => {
                let frame = self.frame(&bytes)?;
                (self.sink)(self.peer, Heard::Offer(frame));
                Ok(())
            }
            [2] => {
                (self.sink)(self.peer, Heard::Note(bytes));
                Ok(())
            }
            _ => Err(self.garbled()),
        }
    }

    fn letter(&self, letter: Letter, input: &mut impl Read) -> Result<(), End> {
        let mut contents = self.mailbox.contents();
        match letter {
            Letter::Message(frame) => {
                drop(contents);
                let frame = self.frame(&frame)?;
                let mut bodies = frame.landings();
                for body in &mut bodies {
                    input.read_exact(body)?;
                }
                (self.sink)(self.peer, Heard::Message(frame, bodies));
                return Ok(());
            }
            Letter::Row { round, bytes } => {
                let ranks = self.mailbox.ranks;
                contents.rows.entry(round).or_insert_with(|| vec![None; ranks])[self.peer] = Some(bytes);
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
                send(&self.writers, self.peer, Packet::Letter(answer, Vec::new()));
                return Ok(());
            }
            Letter::Answer { question, waits_for, activity } => {
                if question == contents.question {
                    contents.answers[self.peer] = Some((activity, waits_for));
                }
            }
            Letter::Bye => return Err(End::Bye),
        }
        drop(contents);
        self.mailbox.wake();
        Ok(())
    }

    fn frame(&self, bytes: &[u8]) -> Result<Frame, End> {
        let error = |source| LinkError::Wire { rank: self.mailbox.rank, peer: self.peer, source };
        Frame::read(bytes).map_err(|source| End::Garbled(error(source)))
    }

    fn garbled(&self) -> End {
        let message = format!("rank {} sent what no rank sends; do all ranks run the same build?", self.peer);
        End::Garbled(LinkError::Closed { rank: self.mailbox.rank, message })
    }
}
