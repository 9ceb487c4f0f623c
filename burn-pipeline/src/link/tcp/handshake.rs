//! What processes send each other until they are connected: values in postcard's encoding behind four bytes that
//! recognise them, and their length.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{Error, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const MAGIC: [u8; 4] = *b"bplt";
/// No value of a handshake is longer.
const LONGEST: usize = 1 << 24;

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

/// What rank 0 sends back: the job's identifier and the addresses of all ranks from 1 on, or why it refuses.
pub(super) type Welcome = Result<(u64, Vec<Address>), String>;

/// What a rank sends to one below it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Introduction {
    pub(super) job: u64,
    pub(super) rank: usize,
}

pub(super) fn write(stream: &mut TcpStream, value: &impl Serialize) -> Result<(), Error> {
    let body = postcard::to_stdvec(value).map_err(|error| Error::new(ErrorKind::InvalidData, error))?;
    stream.write_all(&[&MAGIC[..], &(body.len() as u32).to_le_bytes(), &body].concat())
}

/// Reads a value; each of its parts must arrive within `timeout`.
pub(super) fn read<T: DeserializeOwned>(stream: &mut TcpStream, timeout: Duration) -> Result<T, Error> {
    stream.set_read_timeout(Some(timeout))?;
    let (mut magic, mut length) = ([0; 4], [0; 4]);
    stream.read_exact(&mut magic)?;
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if magic != MAGIC || length > LONGEST {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    stream.set_read_timeout(None)?;
    postcard::from_bytes(&body).map_err(|error| Error::new(ErrorKind::InvalidData, error))
}
