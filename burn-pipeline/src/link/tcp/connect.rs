//! How processes find each other, and connect every two of them.
//!
//! Guarantees: everything ends at the deadline, with the ranks that are missing. A process of a job of another size, or
//! with a rank that is taken, is refused and gets the reason; connections of anything else are ignored.
//!
//! 1. Rank 0 listens at the rendezvous address. The others try to connect until it is there, and send their rank, the
//!    number of ranks that they expect, and the port at which they listen themselves ([`Hello`]).
//! 2. When all are there, rank 0 sends each the addresses of all, and a random identifier of the job ([`Welcome`]).
//! 3. Each rank connects to the ranks below it ([`Introduction`]) and accepts the connections of those above. The
//!    connection to rank 0 stays.
//!
//! Ranks that have a link already exchange their addresses over it instead ([`connect_over`]).

use super::error::TcpError;
use super::handshake::{Address, Hello, Introduction, Welcome, read, write};
use crate::link::gather::gather;
use crate::link::link_trait::Link;
use crate::link::rendezvous::Rendezvous;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Between two looks at a listener, or two attempts to connect.
const PAUSE: Duration = Duration::from_millis(10);
/// The longest that one attempt to connect, or an introduction, may take.
const INTRODUCTION_TIMEOUT: Duration = Duration::from_secs(2);
/// How much longer than rank 0 the others wait, so that they receive from it which ranks are missing.
const GRACE: Duration = Duration::from_secs(2);

/// One connection to every other rank, in rank order; none to this one.
pub type Connections = Vec<Option<TcpStream>>;

/// Connects the ranks that find each other at rank 0's address.
///
/// # Errors
/// If ranks are missing at the deadline, or a process is not one of them.
pub fn connect_at(rendezvous: &Rendezvous, timeout: Duration) -> Result<Connections, TcpError> {
    let Rendezvous { rank, ranks, .. } = *rendezvous;
    let deadline = Instant::now() + timeout;
    match rank {
        _ if rank >= ranks => Err(TcpError::OutOfRange { rank, ranks }),
        0 if ranks == 1 => Ok(vec![None]),
        0 => host(rendezvous, deadline),
        _ => join(rendezvous, deadline + GRACE),
    }
}

/// Rank 0: accepts all others, then sends each the addresses of all.
fn host(rendezvous: &Rendezvous, deadline: Instant) -> Result<Connections, TcpError> {
    let (ranks, port) = (rendezvous.ranks, rendezvous.address.1);
    let listener =
        TcpListener::bind(("0.0.0.0", port)).map_err(|error| TcpError::Port { port, error: error.kind() })?;
    let mut joined: Vec<Option<(TcpStream, Address)>> = (0..ranks).map(|_| None).collect();
    while joined.iter().skip(1).any(Option::is_none) {
        let Some(mut stream) = accept(&listener, deadline)? else {
            let missing = (1..ranks).filter(|&rank| joined[rank].is_none()).collect();
            let error = TcpError::Missing { missing, at: rendezvous.address.clone() };
            refuse(joined.iter_mut().flatten().map(|(stream, _)| stream), &error);
            return Err(error);
        };
        let Ok(hello) = read::<Hello>(&mut stream, INTRODUCTION_TIMEOUT) else { continue };
        let Hello { rank, ranks: theirs, port } = hello;
        let reason = match joined.get(rank) {
            _ if theirs != ranks => format!("it expects {theirs} rank(s), and rank 0 expects {ranks}"),
            None => format!("there is no place for a rank {rank} beside rank 0"),
            Some(_) if rank == 0 => "there is no place for a rank 0 beside rank 0".to_owned(),
            Some(Some(_)) => "another process with that rank was here first".to_owned(),
            Some(None) => {
                let host = stream.peer_addr().map_err(broken(rank))?.ip().to_string();
                joined[rank] = Some((stream, (host, port)));
                continue;
            }
        };
        let error = TcpError::Stranger { rank, reason };
        refuse(std::iter::once(&mut stream).chain(joined.iter_mut().flatten().map(|(stream, _)| stream)), &error);
        return Err(error);
    }
    let (streams, addresses): (Vec<_>, Vec<_>) = joined.into_iter().skip(1).flatten().unzip();
    let welcome: Welcome = Ok((new_job(), addresses));
    let mut connections = vec![None];
    for (rank, mut stream) in (1..).zip(streams) {
        write(&mut stream, &welcome).map_err(broken(rank))?;
        connections.push(Some(stream));
    }
    Ok(connections)
}

/// Sends the reason to processes that are refused.
fn refuse<'a>(streams: impl Iterator<Item = &'a mut TcpStream>, error: &TcpError) {
    let refusal: Welcome = Err(error.to_string());
    for stream in streams {
        // A process that is gone needs no reason.
        let _ = write(stream, &refusal);
    }
}

/// All ranks but rank 0.
fn join(rendezvous: &Rendezvous, deadline: Instant) -> Result<Connections, TcpError> {
    let Rendezvous { rank, ranks, ref address } = *rendezvous;
    let (listener, port) = listen(rank)?;
    let mut stream = connect(0, address, deadline)?;
    write(&mut stream, &Hello { rank, ranks, port }).map_err(broken(0))?;
    let left = deadline.saturating_duration_since(Instant::now()).max(PAUSE);
    let welcome: Welcome = read(&mut stream, left).map_err(broken(0))?;
    let (job, addresses) = welcome.map_err(TcpError::Refused)?;
    // The addresses begin with rank 1's: the connection to rank 0 is there.
    let mut connections = connect_all(rank, 1, &listener, &addresses, job, deadline)?;
    connections.insert(0, Some(stream));
    Ok(connections)
}

/// Connects the ranks of a link, over which they exchange the addresses at which they listen. All ranks must call it.
///
/// # Errors
/// As [`connect_at`], and if the link fails.
pub fn connect_over(link: &mut dyn Link, timeout: Duration) -> Result<Connections, TcpError> {
    let deadline = Instant::now() + timeout;
    let rank = link.rank();
    let (listener, port) = listen(rank)?;
    let own_host = host_name();
    let rows = gather(link, &(new_job(), own_host.clone(), port), deadline);
    let rows: Vec<(u64, String, u16)> = rows.map_err(|error| TcpError::Link(error.to_string()))?;
    // All use rank 0's identifier.
    let Some(&(job, ..)) = rows.first() else { return Ok(Vec::new()) };
    // A machine may not be able to resolve its own name.
    let host = |host: String| if host == own_host { "127.0.0.1".to_owned() } else { host };
    let addresses: Vec<Address> = rows.into_iter().map(|(_, theirs, port)| (host(theirs), port)).collect();
    connect_all(rank, 0, &listener, &addresses, job, deadline)
}

/// Connects to the ranks `first..rank` and accepts the connections of those above. Both `addresses` and what it gives begin
/// with rank `first`.
fn connect_all(
    rank: usize,
    first: usize,
    listener: &TcpListener,
    addresses: &[Address],
    job: u64,
    deadline: Instant,
) -> Result<Connections, TcpError> {
    let mut connections: Connections = addresses.iter().map(|_| None).collect();
    for (peer, address) in (first..rank).zip(addresses) {
        let mut stream = connect(peer, address, deadline)?;
        write(&mut stream, &Introduction { job, rank }).map_err(broken(peer))?;
        connections[peer - first] = Some(stream);
    }
    let above = rank + 1 - first;
    while connections.iter().skip(above).any(Option::is_none) {
        let Some(mut stream) = accept(listener, deadline)? else {
            let missing = (above..connections.len()).filter(|&place| connections[place].is_none());
            let at = (host_name(), listener.local_addr().map_or(0, |address| address.port()));
            return Err(TcpError::Missing { missing: missing.map(|place| place + first).collect(), at });
        };
        let Ok(theirs) = read::<Introduction>(&mut stream, INTRODUCTION_TIMEOUT) else { continue };
        let peer = theirs.rank;
        if theirs.job == job && peer > rank && peer - first < connections.len() {
            connections[peer - first] = Some(stream);
        }
    }
    Ok(connections)
}

/// A listener at a free port.
fn listen(rank: usize) -> Result<(TcpListener, u16), TcpError> {
    let listener = TcpListener::bind("0.0.0.0:0").map_err(broken(rank))?;
    let port = listener.local_addr().map_err(broken(rank))?.port();
    Ok((listener, port))
}

/// The next connection; `None` at the deadline.
fn accept(listener: &TcpListener, deadline: Instant) -> Result<Option<TcpStream>, TcpError> {
    listener.set_nonblocking(true).map_err(broken(0))?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).map_err(broken(0))?;
                return Ok(Some(stream));
            }
            Err(_) if Instant::now() >= deadline => return Ok(None),
            // No connection, or one that is gone again.
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// A connection to a rank that may not listen yet.
fn connect(peer: usize, address: &Address, deadline: Instant) -> Result<TcpStream, TcpError> {
    let mut last = ErrorKind::TimedOut;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(TcpError::Unreachable { rank: peer, at: address.clone(), error: last });
        }
        let found = (address.0.as_str(), address.1).to_socket_addrs();
        let found = found.map_err(|error| error.kind()).map(|all| all.collect::<Vec<_>>()).unwrap_or_default();
        if found.is_empty() {
            last = ErrorKind::NotFound;
        }
        for address in found {
            match TcpStream::connect_timeout(&address, left.min(INTRODUCTION_TIMEOUT)) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error.kind(),
            }
        }
        std::thread::sleep(PAUSE);
    }
}

fn broken(rank: usize) -> impl Fn(std::io::Error) -> TcpError {
    move |error| TcpError::Broken { rank, error: error.kind() }
}

/// An identifier that no other job has, but by chance.
fn new_job() -> u64 {
    // The standard library seeds its hashers from the system's random numbers.
    RandomState::new().build_hasher().finish()
}

/// This machine's name.
fn host_name() -> String {
    gethostname::gethostname().to_string_lossy().into_owned()
}
