//! Connections whose other end has not introduced itself yet.
//!
//! Guarantees: there are at most [`MOST`]. A new connection displaces the oldest, so silent connections cannot keep
//! a rank out. A rank whose connection is displaced has no receipt, and tries again.

use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Weak};

/// The most pending connections; each has a thread.
const MOST: usize = 256;

/// The address of a connection's other end, and the connection, which its thread owns.
type Connection = (SocketAddr, Weak<TcpStream>);

/// The connections, the oldest first.
#[derive(Default)]
pub(super) struct Pending(Mutex<VecDeque<Connection>>);

impl Pending {
    /// Adds a connection.
    pub(super) fn add(&self, from: SocketAddr, stream: &Arc<TcpStream>) {
        let mut connections = self.connections();
        // Connections whose thread could not be started are gone.
        connections.retain(|(_, stream)| stream.strong_count() > 0);
        if connections.len() >= MOST {
            connections.pop_front().iter().for_each(close);
        }
        connections.push_back((from, Arc::downgrade(stream)));
    }

    /// Removes a connection that has introduced itself or has ended; `None` if it was displaced.
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
        self.0.lock()
    }
}

/// Closes a connection, which ends its thread.
fn close((_, stream): &Connection) {
    if let Some(stream) = stream.upgrade() {
        // The other end may have closed it already.
        let _ = stream.shutdown(Shutdown::Both);
    }
}
