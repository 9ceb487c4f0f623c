//! How the two ends of a connection prove to each other that they know the job's secret.
//!
//! Guarantees: an end that does not know the secret is detected before anything else that it sends is read; a proof
//! is valid for one connection and one direction only; the time of a comparison reveals nothing.
//!
//! 1. Each end sends 32 random bytes, the caller first.
//! 2. The caller sends the HMAC-SHA256 (RFC 2104) of both under the secret, then the listener does. Each HMAC
//!    begins with the name of its side, so no proof can be sent back.
//! 3. A listener that gets a wrong proof answers with zeros, so the caller learns that the secrets differ.
//!
//! Without a secret the key is empty, and the proof shows only that the other end is a rank of some job.

use super::handshake::{Nonce, read_exact};
use crate::link::rendezvous::Admission;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::io::{Error, ErrorKind, Write};
use std::net::TcpStream;
use std::time::Instant;

/// Identifies the protocol and its version.
const MAGIC: [u8; 4] = *b"bpt3";
const SIZE: usize = size_of::<Nonce>();

/// The key that both ends of a connection must know.
#[derive(Clone)]
pub(super) struct Key(Vec<u8>);

impl Key {
    /// The key of the connections to rank 0.
    pub(super) fn of(admission: &Admission) -> Self {
        match admission {
            Admission::Secret(secret) => Self(secret.bytes().to_vec()),
            Admission::ThisMachine | Admission::Anyone => Self(Vec::new()),
        }
    }

    /// The key of one job. Only those who know this key and the job's random bytes know it.
    pub(super) fn of_job(&self, job: &Nonce) -> Self {
        Self([self.0.as_slice(), job].concat())
    }

    /// Proves the key to the listener at the other end, then checks the listener's proof.
    pub(super) fn call(&self, mut stream: &TcpStream, deadline: Instant) -> Result<(), Error> {
        let ours = nonce()?;
        send_nonce(stream, &ours)?;
        let theirs = read_nonce(stream, deadline)?;
        stream.write_all(&self.proof("caller", &ours, &theirs)?.finalize().into_bytes())?;
        check(stream, self.proof("listener", &ours, &theirs)?, deadline)
    }

    /// The other end of [`Key::call`].
    pub(super) fn answer(&self, mut stream: &TcpStream, deadline: Instant) -> Result<(), Error> {
        let theirs = read_nonce(stream, deadline)?;
        let ours = nonce()?;
        send_nonce(stream, &ours)?;
        match check(stream, self.proof("caller", &theirs, &ours)?, deadline) {
            Ok(()) => stream.write_all(&self.proof("listener", &theirs, &ours)?.finalize().into_bytes()),
            Err(error) => {
                // The caller may be gone; it is refused in any case.
                let _ = stream.write_all(&[0; SIZE]);
                Err(error)
            }
        }
    }

    /// The HMAC with which a side proves the key.
    fn proof(&self, side: &str, caller: &Nonce, listener: &Nonce) -> Result<Hmac<Sha256>, Error> {
        let keyed = <Hmac<Sha256> as Mac>::new_from_slice(&self.0);
        let mut proof = keyed.map_err(|error| Error::other(error.to_string()))?;
        proof.update(side.as_bytes());
        proof.update(caller);
        proof.update(listener);
        Ok(proof)
    }
}

/// Reads the other end's proof and compares it, in constant time.
fn check(stream: &TcpStream, expected: Hmac<Sha256>, deadline: Instant) -> Result<(), Error> {
    let mut proof = [0; SIZE];
    read_exact(stream, &mut proof, deadline)?;
    expected.verify_slice(&proof).map_err(|_| Error::new(ErrorKind::PermissionDenied, WrongSecret))
}

/// The other end does not know the secret.
#[derive(Debug, thiserror::Error)]
#[error("it does not know the job's secret")]
struct WrongSecret;

/// Returns true if an error says that the other end does not know the secret. The system has errors of the same
/// kind, if a firewall forbids a connection.
pub(super) fn is_wrong_secret(error: &Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<WrongSecret>())
}

/// 32 bytes of the system's random numbers.
pub(super) fn nonce() -> Result<Nonce, Error> {
    let mut bytes = [0; SIZE];
    getrandom::fill(&mut bytes).map_err(Error::other)?;
    Ok(bytes)
}

fn send_nonce(mut stream: &TcpStream, nonce: &Nonce) -> Result<(), Error> {
    stream.write_all(&[&MAGIC[..], nonce].concat())
}

fn read_nonce(stream: &TcpStream, deadline: Instant) -> Result<Nonce, Error> {
    let (mut magic, mut nonce) = ([0; MAGIC.len()], [0; SIZE]);
    read_exact(stream, &mut magic, deadline)?;
    if magic != MAGIC {
        return Err(Error::new(ErrorKind::InvalidData, "it is no rank of this version of burn-pipeline"));
    }
    read_exact(stream, &mut nonce, deadline)?;
    Ok(nonce)
}
