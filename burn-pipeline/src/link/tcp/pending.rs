//! Connections that have not said yet which rank is at their other end.
//!
//! Guarantees: there are [`MOST`] at the most. The oldest gives way to a new one, so that no number of silent connections
//! keeps a rank out; a rank whose connection gives way has had no receipt, and tries again.

use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Each has a thread that hears it.
const MOST: usize = 256;

/// A connection, which the thread that hears it owns, and where it comes from.
type Connection = (SocketAddr, Weak<TcpStream>);

/// The connections, the oldest first.
#[derive(Default)]
pub(super) struct Pending(Mutex<VecDeque<Connection>>);

impl Pending {
    /// Adds a connection.
    pub(super) fn add(&self, from: SocketAddr, stream: &Arc<TcpStream>) {
        let mut connections = self.connections();
        // Those whose thread could not be started are gone.
        connections.retain(|(_, stream)| stream.strong_count() > 0);
        if connections.len() >= MOST {
            connections.pop_front().iter().for_each(close);
        }
        connections.push_back((from, Arc::downgrade(stream)));
    }

    /// Takes out a connection that has said who it is, or has ended; `None` if it had to give way.
    pub(super) fn take(&self, stream: Arc<TcpStream>) -> Option<TcpStream> {
        let mut connections = self.connections();
        let place = connections.iter().position(|(_, other)| other.as_ptr() == Arc::as_ptr(&stream))?;
        connections.remove(place);
        Arc::into_inner(stream)
    }

    /// Where the oldest one comes from.
    pub(super) fn oldest(&self) -> Option<SocketAddr> {
        self.connections().front().map(|(from, _)| *from)
    }

    /// Closes all of them.
    pub(super) fn close(&self) {
        self.connections().drain(..).for_each(|connection| close(&connection));
    }

    fn connections(&self) -> MutexGuard<'_, VecDeque<Connection>> {
        // Locked in spite of poisoning: nothing panics between two changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a connection, and so the thread that hears it.
fn close((_, stream): &Connection) {
    if let Some(stream) = stream.upgrade() {
        // The other end may have closed it already.
        let _ = stream.shutdown(Shutdown::Both);
    }
}
