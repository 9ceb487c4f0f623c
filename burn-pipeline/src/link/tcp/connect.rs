//! How processes find each other, and connect every pair.
//!
//! Guarantees: everything ends at the deadline, with an error that names the missing ranks. Only processes that
//! prove the job's secret are heard ([`Key`]). A process that knows the secret, but expects another number of ranks
//! or has a rank that is taken, is told the reason. Neither it nor any other connection ends or delays the job;
//! each is logged.
//!
//! 1. Rank 0 listens at the rendezvous address. The others try to connect until it does, and send their rank, the
//!    number of ranks that they expect, and the port at which they listen ([`Hello`]), until they get a receipt.
//! 2. When all have joined, rank 0 sends each the addresses of all, and random bytes for the job ([`Welcome`]).
//!    Later connections prove these too, so jobs with the same secret stay apart.
//! 3. Each rank connects to the ranks below it ([`Introduction`]) and accepts connections from those above. The
//!    connection to rank 0 stays.
//!
//! Ranks that already have a link exchange their addresses and the random bytes over it instead
//! ([`Mesh::connect_over`]).

use super::acceptor::Acceptor;
use super::address::{for_rank, host_name, listen_anywhere, listen_at, listen_beside, own_hosts};
use super::dial::Dial;
use super::error::TcpError;
use super::handshake::{Address, Hello, Introduction, Nonce, Welcome, read, write};
use super::key::{Key, nonce};
use super::mesh::{Connections, Mesh};
use crate::link::gather::gather;
use crate::link::kit::envelope::printable;
use crate::link::link_trait::Link;
use crate::link::moving_deadline::LONGEST_TIMEOUT;
use crate::link::rendezvous::{Admission, Rendezvous};
use std::io::ErrorKind;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// How much longer than rank 0 the others wait, so that rank 0 can tell them which ranks are missing.
const GRACE: Duration = Duration::from_secs(2);

impl Mesh {
    /// Connects ranks that find each other at rank 0's address.
    ///
    /// # Errors
    /// Returns [`TcpError`] if ranks are missing at the deadline, rank 0 refuses this process, or there is no secret
    /// and the address is not on this machine.
    pub fn connect_at(rendezvous: &Rendezvous, timeout: Duration) -> Result<Connections, TcpError> {
        let Rendezvous { rank, ranks, .. } = *rendezvous;
        let deadline = Instant::now() + timeout.min(LONGEST_TIMEOUT);
        let connections = match rank {
            _ if rank >= ranks => Err(TcpError::OutOfRange { rank, ranks }),
            _ if rendezvous.admission.proves_nothing() => Err(TcpError::EmptySecret),
            0 if ranks == 1 => Ok(vec![None]),
            0 => host(rendezvous, deadline),
            _ => join(rendezvous, deadline + GRACE),
        };
        settle(connections?)
    }

    /// Connects the ranks of a link. They exchange over it the addresses at which they listen, and the bytes that
    /// the connections prove. All ranks must call it.
    ///
    /// # Errors
    /// As [`Mesh::connect_at`], and if the link fails.
    pub fn connect_over(link: &mut dyn Link, timeout: Duration) -> Result<Connections, TcpError> {
        let deadline = Instant::now() + timeout.min(LONGEST_TIMEOUT);
        let rank = link.rank();
        let (listener, port) = listen_anywhere().map_err(TcpError::broken(rank))?;
        let own = (nonce().map_err(TcpError::broken(rank))?, host_name(), own_hosts(deadline), port);
        let rows = gather(link, &own, deadline);
        let rows: Vec<(Nonce, String, Vec<String>, u16)> = rows.map_err(|error| TcpError::Link(error.to_string()))?;
        // All ranks use rank 0's bytes.
        let Some(&(job, ..)) = rows.first() else { return Ok(Vec::new()) };
        // A machine may not be able to reach itself under its own addresses.
        let local = |theirs: &String| (*theirs == own.1).then(|| "127.0.0.1".to_owned());
        let hosts = rows.into_iter().map(|(_, name, hosts, port)| {
            local(&name).into_iter().chain(hosts).map(|host| (host, port)).collect::<Vec<Address>>()
        });
        let addresses: Vec<Vec<Address>> = hosts.collect();
        let admission = &Admission::Anyone;
        let all = AddressTable { rank, addresses: &addresses, key: Key::of(admission).of_job(&job), admission };
        settle(all.connect(addresses.iter().map(|_| None).collect(), listener, deadline)?)
    }
}

/// A rank that has joined: its connection, where it came from, and the port at which it listens.
pub(super) struct JoinedRank {
    stream: TcpStream,
    from: IpAddr,
    port: u16,
}

/// Rank 0: accepts all others, then sends each the addresses of all.
fn host(rendezvous: &Rendezvous, deadline: Instant) -> Result<Connections, TcpError> {
    let Rendezvous { ranks, ref address, ref admission, .. } = *rendezvous;
    let listeners = listen_at(address, admission, deadline)?;
    let mut acceptor = Acceptor::<Hello>::start(listeners, Key::of(admission), deadline).map_err(TcpError::thread)?;
    let mut joined: Vec<Option<JoinedRank>> = (0..ranks).map(|_| None).collect();
    while !all_are_there(&mut joined) {
        let Some((stream, from, hello)) = acceptor.next() else {
            let missing = (1..ranks).filter(|&rank| joined[rank].is_none()).collect();
            let error = TcpError::Missing { missing, at: address.clone(), ignored: acceptor.last_ignored() };
            for JoinedRank { stream, .. } in joined.iter().flatten() {
                // A process that is gone needs no reason.
                let _ = write(stream, &Welcome::Err(error.to_string()), deadline + GRACE);
            }
            return Err(error);
        };
        match refusal(&hello, &joined) {
            None => joined[hello.rank] = Some(JoinedRank { stream, from: from.ip(), port: hello.port }),
            Some(reason) => {
                let error = TcpError::Stranger { rank: hello.rank, reason }.to_string();
                acceptor.ignore(from, &error);
                let _ = write(&stream, &Welcome::Err(error), deadline);
            }
        }
    }
    let joined: Vec<JoinedRank> = joined.into_iter().flatten().collect();
    let job = nonce().map_err(TcpError::broken(0))?;
    for (rank, receiver) in (1..).zip(&joined) {
        let reached = receiver.stream.local_addr().map_err(TcpError::broken(rank))?.ip();
        let address = |rank: &JoinedRank| (for_rank(rank.from, reached).to_string(), rank.port);
        let welcome = Welcome::Ok((job, joined.iter().map(address).collect()));
        write(&receiver.stream, &welcome, deadline + GRACE).map_err(TcpError::broken(rank))?;
    }
    Ok(std::iter::once(None).chain(joined.into_iter().map(|rank| Some(rank.stream))).collect())
}

/// Returns true if all have joined. A process that has ended since makes room for its replacement.
fn all_are_there(joined: &mut [Option<JoinedRank>]) -> bool {
    let complete = |joined: &[Option<JoinedRank>]| joined.iter().skip(1).all(Option::is_some);
    if complete(joined) {
        for place in joined.iter_mut() {
            place.take_if(|rank| is_gone(&rank.stream));
        }
    }
    complete(joined)
}

/// Returns why a process that knows the secret cannot join, if it cannot.
pub(super) fn refusal(hello: &Hello, joined: &[Option<JoinedRank>]) -> Option<String> {
    let (rank, theirs, ranks) = (hello.rank, hello.ranks, joined.len());
    match joined.get(rank) {
        _ if theirs != ranks => Some(format!("it expects {theirs} rank(s), and rank 0 expects {ranks}")),
        None => Some(format!("there is no place for a rank {rank} among {ranks}")),
        Some(_) if rank == 0 => Some("there is no place for a rank 0 beside rank 0".to_owned()),
        Some(Some(first)) if !is_gone(&first.stream) => {
            Some("another process with that rank was here first".to_owned())
        }
        Some(_) => None,
    }
}

/// Returns true if the other end of a connection, which has nothing to send yet, has closed it.
fn is_gone(stream: &TcpStream) -> bool {
    let looked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    // If this fails, so does the next use of the connection.
    let _ = stream.set_nonblocking(false);
    !matches!(looked, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// All ranks but rank 0.
fn join(rendezvous: &Rendezvous, deadline: Instant) -> Result<Connections, TcpError> {
    let Rendezvous { rank, ranks, ref address, ref admission } = *rendezvous;
    let key = Key::of(admission);
    let rank_0 = Dial { peer: 0, at: std::slice::from_ref(address), key: &key, admission, deadline };
    let (stream, listener) = rank_0.connect(|stream| {
        let (listener, port) = listen_beside(stream, address, admission)?;
        Ok((Hello { rank, ranks, port }, listener))
    })?;
    let welcome: Welcome = read(&stream, deadline).map_err(TcpError::broken(0))?;
    let (job, addresses) = table(welcome, ranks)?;
    let mut connections: Connections = addresses.iter().map(|_| None).collect();
    connections[0] = Some(stream);
    let all = AddressTable { rank, addresses: &addresses, key: key.of_job(&job), admission };
    all.connect(connections, listener, deadline)
}

/// Reads rank 0's reply: the job's random bytes, and the addresses by rank, none for rank 0.
pub(super) fn table(welcome: Welcome, ranks: usize) -> Result<(Nonce, Vec<Vec<Address>>), TcpError> {
    let (job, addresses) = welcome.map_err(|reason| TcpError::Refused(printable(&reason)))?;
    if addresses.len() + 1 != ranks {
        return Err(TcpError::broken(0)(ErrorKind::InvalidData.into()));
    }
    let of_rank_0 = Vec::new();
    Ok((job, std::iter::once(of_rank_0).chain(addresses.into_iter().map(|address| vec![address])).collect()))
}

/// All ranks, with their addresses.
struct AddressTable<'a> {
    rank: usize,
    addresses: &'a [Vec<Address>],
    key: Key,
    admission: &'a Admission,
}

impl AddressTable<'_> {
    /// Connects to the ranks below this one that are not connected, and accepts the connections of those above.
    fn connect(
        &self,
        mut connections: Connections,
        listener: TcpListener,
        deadline: Instant,
    ) -> Result<Connections, TcpError> {
        let Self { rank, addresses, ref key, admission } = *self;
        let at = (host_name(), listener.local_addr().map_or(0, |address| address.port()));
        let mut acceptor =
            Acceptor::<Introduction>::start(vec![listener], key.clone(), deadline).map_err(TcpError::thread)?;
        // All at once: an address that does not answer costs each rank some seconds.
        let dialled = std::thread::scope(|scope| {
            let below = (0..rank).filter(|&peer| connections[peer].is_none());
            let dials = below.map(|peer| {
                let dial = Dial { peer, at: &addresses[peer], key, admission, deadline };
                let call = move || dial.connect(|_| Ok((Introduction { rank }, ())));
                (peer, std::thread::Builder::new().spawn_scoped(scope, call).map_err(TcpError::thread))
            });
            let dials: Vec<_> = dials.collect();
            dials.into_iter().map(|(peer, dial)| (peer, dial.map(|dial| dial.join()))).collect::<Vec<_>>()
        });
        for (peer, dialled) in dialled {
            let (stream, ()) = dialled?.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            connections[peer] = Some(stream);
        }
        while connections.iter().skip(rank + 1).any(Option::is_none) {
            let Some((stream, from, Introduction { rank: peer })) = acceptor.next() else {
                let missing = (rank + 1..connections.len()).filter(|&peer| connections[peer].is_none()).collect();
                return Err(TcpError::Missing { missing, at, ignored: acceptor.last_ignored() });
            };
            match connections.get_mut(peer).filter(|_| peer > rank) {
                Some(place) => *place = Some(stream),
                None => acceptor.ignore(from, &format!("it says that it is rank {peer}")),
            }
        }
        Ok(connections)
    }
}

/// Removes the timeouts of the handshake.
fn settle(connections: Connections) -> Result<Connections, TcpError> {
    for (rank, stream) in connections.iter().enumerate() {
        let Some(stream) = stream else { continue };
        let settled = stream.set_read_timeout(None).and_then(|()| stream.set_write_timeout(None));
        settled.map_err(TcpError::broken(rank))?;
    }
    Ok(connections)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_other_ranks_than_the_job_has_is_refused() {
        for (addresses, ranks) in [(0, 2), (1, 3), (3, 3), (2, 3)] {
            let table = table(Ok(([0; 32], vec![("127.0.0.1".to_owned(), 1); addresses])), ranks);
            assert_eq!(table.is_ok(), addresses + 1 == ranks, "{addresses} {ranks}");
        }
    }
}
