//! Connects to a rank that may not listen yet, has it prove the job's secret, and introduces this one.
//!
//! Guarantees: it ends at its deadline. A connection that ends before the other end has given its receipt is tried again.
//! What listens there and does not know the secret is logged and tried again too: it may be a stranger in the place of a
//! rank that is still to come.

use super::error::TcpError;
use super::handshake::{Address, read, write};
use super::key::{Key, is_wrong_secret};
use super::look_up::LookUp;
use crate::link::admission::Admission;
use serde::Serialize;
use std::io::{Error, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(10);
/// The same after the other end has not proved the secret.
const LONG_PAUSE: Duration = Duration::from_millis(500);
/// How long the first attempt waits for the other end's proof. Each that waits in vain makes the next one wait twice as long,
/// since the other end's machine may be slow.
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
    /// A connection to the rank, which has given its receipt for what `introduce` makes of the connection: what is said,
    /// and what is to be kept with the connection.
    pub(super) fn connect<T: Serialize, K>(
        &self,
        introduce: impl Fn(&TcpStream) -> Result<(T, K), Error>,
    ) -> Result<(TcpStream, K), TcpError> {
        let mut look_ups: Vec<LookUp<'_>> = self.at.iter().map(LookUp::start).collect();
        let (mut last, mut wrong_secret, mut attempt) = (None, false, ATTEMPT);
        loop {
            for look_up in &mut look_ups {
                look_up.renew();
                for place in look_up.usable(self.admission, Instant::now())? {
                    match self.call(place, attempt, &introduce) {
                        Ok(connected) => return Ok(connected),
                        Err(error) if is_wrong_secret(&error) => {
                            tracing::warn!(rank = self.peer, at = %place, "what listens there does not know the job's secret");
                            wrong_secret = true;
                        }
                        Err(error) => {
                            if error.kind() == ErrorKind::TimedOut {
                                attempt *= 2;
                            }
                            last = Some(error.kind());
                        }
                    }
                }
            }
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
        // An attempt may begin at the deadline, so that there is one for every timeout.
        let left = self.deadline.saturating_duration_since(Instant::now()).clamp(PAUSE, attempt);
        let until = Instant::now() + left;
        let stream = TcpStream::connect_timeout(&place, left)?;
        if stream.local_addr()? == stream.peer_addr()? {
            // Where nobody listens yet, the system may choose that very port to connect from.
            return Err(ErrorKind::ConnectionRefused.into());
        }
        stream.set_nodelay(true)?;
        self.key.call(&stream, until)?;
        let (said, kept) = introduce(&stream)?;
        // What knows the secret is a rank, which may take its time.
        let until = until.max(self.deadline);
        write(&stream, &said, until)?;
        read::<()>(&stream, until)?;
        Ok((stream, kept))
    }

    /// Why the rank was not reached.
    fn error(&self, last: Option<ErrorKind>, wrong_secret: bool, look_ups: &[LookUp<'_>]) -> TcpError {
        let (rank, at) = (self.peer, self.at.first().cloned().unwrap_or_default());
        match (last, look_ups.first()) {
            // It says more than what another address of the same rank gives.
            _ if wrong_secret => TcpError::Secret { rank, at },
            (Some(error), _) => TcpError::Unreachable { rank, at, error },
            (None, Some(look_up)) => look_up.error(),
            (None, None) => TcpError::Unreachable { rank, at, error: ErrorKind::NotFound },
        }
    }
}
