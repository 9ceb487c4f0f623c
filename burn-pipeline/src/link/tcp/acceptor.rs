//! Accepts connections, and gives those whose other end has proved the job's secret.
//!
//! Guarantees: connections that are silent, slow or no rank's neither end nor delay anything: each is heard on a thread of
//! its own for [`INTRODUCTION_TIMEOUT`] at most, [`MOST`] at the same time, and what does not belong is logged and closed.
//!
//! Dropping it closes the listeners. Connections that are still heard then end by themselves.

use super::handshake::read;
use super::key::Key;
use serde::de::DeserializeOwned;
use std::io::Error;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Between two looks at the listeners.
const PAUSE: Duration = Duration::from_millis(10);
/// The longest that a process may take to prove the secret and say who it is.
pub(super) const INTRODUCTION_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections that are heard at the same time; later ones wait in the system's queue.
const MOST: usize = 256;
/// Strangers that are logged as warnings; a flood of them must not flood the log.
const WARNINGS: usize = 20;

/// A connection, its other end's address, and what that end said first.
type Arrival<T> = (TcpStream, SocketAddr, T);

/// Accepts connections that introduce themselves with a `T`.
pub(super) struct Acceptor<T> {
    arrivals: Receiver<Result<Arrival<T>, (SocketAddr, Error)>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    ignored: usize,
    last_ignored: Option<String>,
}

impl<T: DeserializeOwned + Send + 'static> Acceptor<T> {
    /// Starts to accept.
    pub(super) fn start(listeners: Vec<TcpListener>, key: Key) -> Result<Self, Error> {
        let (sender, arrivals) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        listeners.iter().try_for_each(|listener| listener.set_nonblocking(true))?;
        let body = move || accept_until(&stopped, &listeners, &key, &sender);
        let thread = Builder::new().name("tcp accept".to_owned()).spawn(body)?;
        Ok(Self { arrivals, stop, thread: Some(thread), ignored: 0, last_ignored: None })
    }

    /// The next connection that belongs to the job; `None` at the deadline.
    pub(super) fn next(&mut self, deadline: Instant) -> Option<Arrival<T>> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
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

    /// The last connection that was not used, and why.
    pub(super) fn last_ignored(&self) -> Option<String> {
        self.last_ignored.clone()
    }
}

impl<T> Drop for Acceptor<T> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It looks at `stop` after each pause; it panics nowhere.
            let _ = thread.join();
        }
    }
}

/// The body of the thread that accepts.
fn accept_until<T: DeserializeOwned + Send + 'static>(
    stop: &AtomicBool,
    listeners: &[TcpListener],
    key: &Key,
    arrivals: &Sender<Result<Arrival<T>, (SocketAddr, Error)>>,
) {
    let heard = Arc::new(AtomicUsize::new(0));
    while !stop.load(Ordering::Relaxed) {
        let mut any = false;
        for listener in listeners {
            if heard.load(Ordering::Relaxed) >= MOST {
                break;
            }
            // No connection, or one that is gone again.
            let Ok((stream, from)) = listener.accept() else { continue };
            any = true;
            heard.fetch_add(1, Ordering::Relaxed);
            let (key, arrivals, heard) = (key.clone(), arrivals.clone(), heard.clone());
            let counted = heard.clone();
            let body = move || {
                let introduced = hear(stream, &key).map(|(stream, said)| (stream, from, said));
                heard.fetch_sub(1, Ordering::Relaxed);
                // It fails once all are there and nobody listens any more.
                let _ = arrivals.send(introduced.map_err(|error| (from, error)));
            };
            if Builder::new().name("tcp hears".to_owned()).spawn(body).is_err() {
                // The connection is closed; the other end tries again.
                counted.fetch_sub(1, Ordering::Relaxed);
            }
        }
        if !any {
            std::thread::sleep(PAUSE);
        }
    }
}

/// What the other end says first, once it has proved the secret.
fn hear<T: DeserializeOwned>(mut stream: TcpStream, key: &Key) -> Result<(TcpStream, T), Error> {
    let deadline = Instant::now() + INTRODUCTION_TIMEOUT;
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(INTRODUCTION_TIMEOUT))?;
    key.answer(&mut stream, deadline)?;
    let said = read(&stream, deadline)?;
    Ok((stream, said))
}
