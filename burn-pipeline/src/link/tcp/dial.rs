//! Connects to a rank that may not listen yet, and has it prove the job's secret.
//!
//! Guarantees: it ends at its deadline. What listens there and does not know the secret is logged and tried again: it may
//! be a stranger in the place of a rank that is still to come.

use super::acceptor::INTRODUCTION_TIMEOUT;
use super::address::resolve;
use super::error::TcpError;
use super::handshake::Address;
use super::key::Key;
use crate::link::admission::Admission;
use std::io::{Error, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(10);
/// The same after the other end has not proved the secret.
const LONG_PAUSE: Duration = Duration::from_millis(500);

/// A connection to a rank, under one of these addresses.
pub(super) fn dial(
    peer: usize,
    at: &[Address],
    key: &Key,
    admission: &Admission,
    deadline: Instant,
) -> Result<TcpStream, TcpError> {
    let unreachable = |error: ErrorKind| match at.first() {
        Some(at) if error == ErrorKind::PermissionDenied => TcpError::Secret { rank: peer, at: at.clone() },
        at => TcpError::Unreachable { rank: peer, at: at.cloned().unwrap_or_default(), error },
    };
    let mut last = ErrorKind::NotFound;
    loop {
        let mut places = Vec::new();
        for address in at {
            places.extend(resolve(address, admission)?);
        }
        for place in places {
            match call(place, key, deadline) {
                Ok(stream) => return Ok(stream),
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    tracing::warn!(rank = peer, at = %place, "what listens there does not know the job's secret");
                    last = error.kind();
                }
                // A wrong secret says more than what another address of the same rank gives.
                Err(_) if last == ErrorKind::PermissionDenied => {}
                Err(error) => last = error.kind(),
            }
        }
        let pause = if last == ErrorKind::PermissionDenied { LONG_PAUSE } else { PAUSE };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(unreachable(last));
        }
        std::thread::sleep(pause.min(left));
    }
}

/// One attempt to connect.
fn call(place: SocketAddr, key: &Key, deadline: Instant) -> Result<TcpStream, Error> {
    // An attempt may begin at the deadline, so that there is one for every timeout.
    let left = deadline.saturating_duration_since(Instant::now()).clamp(PAUSE, INTRODUCTION_TIMEOUT);
    let mut stream = TcpStream::connect_timeout(&place, left)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(INTRODUCTION_TIMEOUT))?;
    key.call(&mut stream, Instant::now() + left)?;
    Ok(stream)
}
