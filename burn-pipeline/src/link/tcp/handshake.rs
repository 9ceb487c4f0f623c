//! What processes send each other between the proofs and the end of the handshake: values in postcard's encoding
//! after their length.
//!
//! Guarantees: reading ends at its deadline, however slowly bytes come, and takes at most [`LONGEST`] bytes.
//! Writing ends at its deadline if the other end takes nothing.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{Error, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The time for a write at its deadline, so that a reason can still be sent.
const LEAST: Duration = Duration::from_millis(10);
/// The longest value of a handshake: the addresses of ten thousand ranks.
const LONGEST: usize = 1 << 20;

/// Random bytes.
pub(super) type Nonce = [u8; 32];

/// Host and port.
pub(super) type Address = (String, u16);

/// What a rank sends to rank 0.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) rank: usize,
    pub(super) ranks: usize,
    /// The port at which it listens for the ranks above it.
    pub(super) port: u16,
}

/// Rank 0's reply: the job's random bytes and the addresses of all ranks from 1 on, or the reason for a refusal.
pub(super) type Welcome = Result<(Nonce, Vec<Address>), String>;

/// What a rank sends to one below it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Introduction {
    pub(super) rank: usize,
}

/// Writes a value.
pub(super) fn write(mut stream: &TcpStream, value: &impl Serialize, deadline: Instant) -> Result<(), Error> {
    stream.set_write_timeout(Some(deadline.saturating_duration_since(Instant::now()).max(LEAST)))?;
    let body = postcard::to_stdvec(value).map_err(|error| Error::new(ErrorKind::InvalidData, error))?;
    stream.write_all(&[&(body.len() as u32).to_le_bytes(), body.as_slice()].concat())
}

/// Reads a value.
pub(super) fn read<T: DeserializeOwned>(stream: &TcpStream, deadline: Instant) -> Result<T, Error> {
    let mut length = [0; 4];
    read_exact(stream, &mut length, deadline)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > LONGEST {
        return Err(Error::new(ErrorKind::InvalidData, "it announces more bytes than any rank sends"));
    }
    let mut body = vec![0; length];
    read_exact(stream, &mut body, deadline)?;
    postcard::from_bytes(&body).map_err(|error| Error::new(ErrorKind::InvalidData, error))
}

/// Fills the buffer before the deadline, even if bytes arrive one by one.
pub(super) fn read_exact(mut stream: &TcpStream, buffer: &mut [u8], deadline: Instant) -> Result<(), Error> {
    let mut filled = 0;
    while filled < buffer.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(more) => filled += more,
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
