//! Accepts connections, and returns those whose other end has proved the job's secret and introduced itself.
//!
//! Guarantees: connections that are silent, slow or not from a rank neither end nor delay anything. Each is read on
//! its own thread until all ranks have joined, or until newer connections displace it ([`Pending`]). An end that
//! has proved the secret and introduced itself gets a receipt, and is then kept. An end whose connection closes
//! before that may try again, so a rank may take as long as it likes. Connections that do not belong to the job are
//! logged and closed.
//!
//! Dropping it closes the listeners, and all connections that are still being read.

use super::handshake::{read, write};
use super::key::Key;
use super::pending::Pending;
use serde::de::DeserializeOwned;
use std::io::{Error, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// The pause between two checks of the listeners.
const PAUSE: Duration = Duration::from_millis(10);
/// How much longer than the acceptor the connections are read: until the acceptor has reported at its deadline
/// which of them are silent.
const MARGIN: Duration = Duration::from_secs(1);
/// How many strangers are logged as warnings. A flood of connections must not flood the log.
const WARNINGS: usize = 20;

/// A connection, its other end's address, and that end's introduction.
type Arrival<T> = (TcpStream, SocketAddr, T);

/// Accepts connections that introduce themselves with a `T`.
pub(super) struct Acceptor<T> {
    arrivals: Receiver<Result<Arrival<T>, (SocketAddr, Error)>>,
    greeter: Arc<Greeter<T>>,
    deadline: Instant,
    thread: Option<JoinHandle<()>>,
    ignored: usize,
    last_ignored: Option<String>,
}

impl<T: DeserializeOwned + Send + 'static> Acceptor<T> {
    /// Starts to accept connections, until the deadline.
    pub(super) fn start(listeners: Vec<TcpListener>, key: Key, deadline: Instant) -> Result<Self, Error> {
        listeners.iter().try_for_each(|listener| listener.set_nonblocking(true))?;
        let (sender, arrivals) = channel();
        let (pending, stop) = (Pending::default(), AtomicBool::new(false));
        let greeter = Arc::new(Greeter { key, deadline: deadline + MARGIN, pending, stop, arrivals: sender });
        let accepting = greeter.clone();
        let thread = Builder::new().name("tcp accept".to_owned()).spawn(move || accept(&accepting, &listeners))?;
        Ok(Self { arrivals, greeter, deadline, thread: Some(thread), ignored: 0, last_ignored: None })
    }

    /// Returns the next connection that belongs to the job; `None` at the deadline.
    pub(super) fn next(&mut self) -> Option<Arrival<T>> {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            match self.arrivals.recv_timeout(left).ok()? {
                Ok(arrival) => return Some(arrival),
                Err((from, error)) => self.ignore(from, &error.to_string()),
            }
        }
    }
}

impl<T> Acceptor<T> {
    /// Logs a connection that is not used.
    pub(super) fn ignore(&mut self, from: SocketAddr, reason: &str) {
        self.ignored += 1;
        if self.ignored <= WARNINGS {
            tracing::warn!(%from, reason, "a connection to this rank was ignored");
        } else {
            tracing::debug!(%from, reason, "a connection to this rank was ignored");
        }
        self.last_ignored = Some(format!("the connection from {from}: {reason}"));
    }

    /// The last connection that was not used, and why; if there is none, a silent one.
    pub(super) fn last_ignored(&self) -> Option<String> {
        let silent =
            || Some(format!("the connection from {}: it has not said who it is", self.greeter.pending.oldest()?));
        self.last_ignored.clone().or_else(silent)
    }
}

impl<T> Drop for Acceptor<T> {
    fn drop(&mut self) {
        self.greeter.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It checks `stop` after each pause, and never panics.
            let _ = thread.join();
        }
        self.greeter.pending.close();
    }
}

/// What the threads share.
struct Greeter<T> {
    key: Key,
    deadline: Instant,
    pending: Pending,
    /// True once nothing more is accepted.
    stop: AtomicBool,
    arrivals: Sender<Result<Arrival<T>, (SocketAddr, Error)>>,
}

impl<T: DeserializeOwned> Greeter<T> {
    /// The body of a connection's thread.
    fn run(&self, stream: Arc<TcpStream>, from: SocketAddr) {
        let introduced = self.hear(&stream);
        // From here on no other connection displaces it: a rank with a receipt is kept.
        let kept = self.pending.take(stream);
        let arrival = introduced.and_then(|said| {
            let stream = kept.ok_or_else(|| Error::new(ErrorKind::ConnectionAborted, "it gave way to others"))?;
            write(&stream, &(), self.deadline)?;
            Ok((stream, from, said))
        });
        // This fails once all ranks have joined and nobody receives any more.
        let _ = self.arrivals.send(arrival.map_err(|error| (from, error)));
    }

    /// Reads the other end's introduction, once it has proved the secret.
    fn hear(&self, stream: &TcpStream) -> Result<T, Error> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        self.key.answer(stream, self.deadline)?;
        read(stream, self.deadline)
    }
}

/// The body of the accepting thread.
fn accept<T: DeserializeOwned + Send + 'static>(greeter: &Arc<Greeter<T>>, listeners: &[TcpListener]) {
    while !greeter.stop.load(Ordering::Relaxed) {
        let mut any = false;
        for listener in listeners {
            // There is no connection, or it is already gone.
            let Ok((stream, from)) = listener.accept() else { continue };
            any = true;
            let (stream, greeter) = (Arc::new(stream), greeter.clone());
            greeter.pending.add(from, &stream);
            // If no thread can be started, the connection is closed, and the other end tries again.
            let _ = Builder::new().name("tcp hears".to_owned()).spawn(move || greeter.run(stream, from));
        }
        if !any {
            std::thread::sleep(PAUSE);
        }
    }
}
