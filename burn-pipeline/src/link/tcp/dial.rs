//! Connects to a rank that may not listen yet, lets it prove the job's secret, and introduces this rank.
//!
//! Guarantees: it ends at its deadline. A connection that ends before the other end has sent its receipt is tried
//! again. A listener that does not know the secret is logged and tried again too: it may be a stranger in the place
//! of a rank that is still to come.

use super::error::TcpError;
use super::handshake::{Address, read, write};
use super::key::{Key, is_wrong_secret};
use super::look_up::LookUp;
use crate::link::rendezvous::Admission;
use serde::Serialize;
use std::io::{Error, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(10);
/// The pause after the other end has failed to prove the secret.
const LONG_PAUSE: Duration = Duration::from_millis(500);
/// How long the first attempts, one at each address, wait for the other end's proof. If one times out, the next ones
/// wait twice as long, since the other end's machine may be slow.
const ATTEMPT: Duration = Duration::from_secs(2);

/// How to reach a rank.
pub(super) struct Dial<'a> {
    pub(super) peer: usize,
    /// Its addresses.
    pub(super) at: &'a [Address],
    pub(super) key: &'a Key,
    pub(super) admission: &'a Admission,
    pub(super) deadline: Instant,
}

impl Dial<'_> {
    /// Connects to the rank and waits for its receipt. `introduce` returns the introduction to send, and what to
    /// keep with the connection.
    pub(super) fn connect<T: Serialize, K>(
        &self,
        introduce: impl Fn(&TcpStream) -> Result<(T, K), Error>,
    ) -> Result<(TcpStream, K), TcpError> {
        let mut look_ups: Vec<LookUp<'_>> = self.at.iter().map(LookUp::start).collect();
        let (mut last, mut wrong_secret, mut attempt) = (None, false, ATTEMPT);
        loop {
            let mut timed_out = false;
            for look_up in &mut look_ups {
                look_up.renew();
                for place in look_up.usable(self.admission, Instant::now())? {
                    match self.call(place, attempt, &introduce) {
                        Ok(connected) => return Ok(connected),
                        Err(error) if is_wrong_secret(&error) => {
                            tracing::warn!(
                                rank = self.peer, at = %place,
                                "what listens there does not know the job's secret"
                            );
                            wrong_secret = true;
                        }
                        Err(error) => {
                            timed_out |= error.kind() == ErrorKind::TimedOut;
                            last = Some(error.kind());
                        }
                    }
                }
            }
            attempt *= if timed_out { 2 } else { 1 };
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.error(last, wrong_secret, &look_ups));
            }
            std::thread::sleep(if wrong_secret { LONG_PAUSE } else { PAUSE }.min(left));
        }
    }

    /// One attempt.
    fn call<T: Serialize, K>(
        &self,
        place: SocketAddr,
        attempt: Duration,
        introduce: impl Fn(&TcpStream) -> Result<(T, K), Error>,
    ) -> Result<(TcpStream, K), Error> {
        // An attempt may begin at the deadline, so that every timeout allows one.
        let left = self.deadline.saturating_duration_since(Instant::now()).clamp(PAUSE, attempt);
        let until = Instant::now() + left;
        let stream = TcpStream::connect_timeout(&place, left)?;
        if stream.local_addr()? == stream.peer_addr()? {
            // If nobody listens yet, the system may choose that very port to connect from.
            return Err(ErrorKind::ConnectionRefused.into());
        }
        stream.set_nodelay(true)?;
        self.key.call(&stream, until)?;
        let (said, kept) = introduce(&stream)?;
        // The other end knows the secret, so it is a rank, and may take its time.
        let until = until.max(self.deadline);
        write(&stream, &said, until)?;
        read::<()>(&stream, until)?;
        Ok((stream, kept))
    }

    /// The error if the rank was not reached.
    fn error(&self, last: Option<ErrorKind>, wrong_secret: bool, look_ups: &[LookUp<'_>]) -> TcpError {
        let (rank, at) = (self.peer, self.at.first().cloned().unwrap_or_default());
        match (last, look_ups.first()) {
            // This says more than an error from another address of the same rank.
            _ if wrong_secret => TcpError::Secret { rank, at },
            (Some(error), _) => TcpError::Unreachable { rank, at, error },
            (None, Some(look_up)) => look_up.error(),
            (None, None) => TcpError::Unreachable { rank, at, error: ErrorKind::NotFound },
        }
    }
}
