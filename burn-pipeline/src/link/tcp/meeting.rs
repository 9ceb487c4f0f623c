//! How processes find each other: a meeting at rank 0's address, and a connection between every two of them.
//!
//! Guarantees: everything ends at the deadline, with the ranks that did not come; a process of another job, of another
//! size, or with a rank that is taken, is refused and told why; what is no rank at all is ignored.
//!
//! 1. Rank 0 listens at the meeting point. The others connect, again and again until it is there, and say their
//!    rank, how many ranks they expect, and the port at which they listen themselves.
//! 2. When all have come, rank 0 gives each the addresses of all, and a number by which they know each other.
//! 3. Each rank connects to those below it and takes the connections of those above. The connection of the meeting
//!    stays, as the one to rank 0.
//!
//! Ranks that have a link already exchange their addresses over it instead: [`by_link`].

use super::TcpError;
use crate::link::{Link, gather};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

const MAGIC: [u8; 8] = *b"bplktcp1";
/// Between two looks at a listener, or two attempts to connect.
const PAUSE: Duration = Duration::from_millis(10);
/// The longest that somebody who has connected may take to say who it is.
const MANNERS: Duration = Duration::from_secs(2);
/// How much longer than rank 0 the others wait, so that they hear from it who did not come.
const GRACE: Duration = Duration::from_secs(2);

/// This process among all, and where they meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// This process.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
    /// Host name or address of rank 0, and the port at which it listens.
    pub meeting: (String, u16),
}

/// One connection to every other rank, in rank order; none to this one.
pub type Connections = Vec<Option<TcpStream>>;

/// Meets the other ranks at rank 0's address.
///
/// # Errors
/// If ranks do not come, or strangers do.
pub fn at(place: &Place, timeout: Duration) -> Result<Connections, TcpError> {
    let Place { rank, ranks, .. } = *place;
    let deadline = Instant::now() + timeout;
    match rank {
        _ if rank >= ranks => Err(TcpError::OutOfRange { rank, ranks }),
        0 if ranks == 1 => Ok(vec![None]),
        0 => host(place, deadline),
        _ => join(place, deadline + GRACE),
    }
}

/// Rank 0: takes all others, then tells each where the others are.
fn host(place: &Place, deadline: Instant) -> Result<Connections, TcpError> {
    let (ranks, port) = (place.ranks, place.meeting.1);
    let listener =
        TcpListener::bind(("0.0.0.0", port)).map_err(|error| TcpError::Port { port, error: error.kind() })?;
    let mut come: Vec<Option<(TcpStream, (String, u16))>> = (0..ranks).map(|_| None).collect();
    while come.iter().skip(1).any(Option::is_none) {
        let Some(mut stream) = accept(&listener, deadline)? else {
            let missing = (1..ranks).filter(|&rank| come[rank].is_none()).collect();
            let error = TcpError::Missing { missing, at: place.meeting.clone() };
            refuse(come.iter_mut().flatten().map(|(stream, _)| stream), &error.to_string());
            return Err(error);
        };
        let Some([rank, theirs, port]) = hello(&mut stream) else { continue };
        let reason = match rank as usize {
            _ if theirs as usize != ranks => format!("it expects {theirs} rank(s), and rank 0 expects {ranks}"),
            rank if rank == 0 || rank >= ranks => format!("there is no place for a rank {rank} beside rank 0"),
            rank if come[rank].is_some() => "another process with that rank was here first".to_owned(),
            rank => {
                let host = stream.peer_addr().map_err(broken(rank))?.ip().to_string();
                come[rank] = Some((stream, (host, port as u16)));
                continue;
            }
        };
        let error = TcpError::Stranger { rank: rank as usize, reason };
        let text = error.to_string();
        refuse(std::iter::once(&mut stream).chain(come.iter_mut().flatten().map(|(stream, _)| stream)), &text);
        return Err(error);
    }
    let cookie = cookie();
    let (streams, addresses): (Vec<_>, Vec<_>) = come.into_iter().skip(1).flatten().unzip();
    let table = write_table(cookie, &addresses);
    let mut connections = vec![None];
    for (rank, mut stream) in (1..).zip(streams) {
        stream.write_all(&table).map_err(broken(rank))?;
        connections.push(Some(stream));
    }
    Ok(connections)
}

/// The others.
fn join(place: &Place, deadline: Instant) -> Result<Connections, TcpError> {
    let listener = TcpListener::bind("0.0.0.0:0").map_err(broken(place.rank))?;
    let port = listener.local_addr().map_err(broken(place.rank))?.port();
    let mut stream = connect(0, &place.meeting, deadline)?;
    let words = [place.rank as u32, place.ranks as u32, u32::from(port)];
    let mut told = MAGIC.to_vec();
    told.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    stream.write_all(&told).map_err(broken(0))?;
    let left = deadline.saturating_duration_since(Instant::now()).max(PAUSE);
    stream.set_read_timeout(Some(left)).map_err(broken(0))?;
    let (cookie, addresses) = read_table(&mut stream, place.ranks)?;
    stream.set_read_timeout(None).map_err(broken(0))?;
    // Rank 0's own address is not needed any more.
    let mut connections = mesh(place.rank, 1, &listener, &addresses, cookie, deadline)?;
    connections.insert(0, Some(stream));
    Ok(connections)
}

/// Meets the other ranks of a link: each tells the others where it listens.
///
/// # Errors
/// As [`at`], and if the link fails.
pub fn by_link(link: &mut dyn Link, timeout: Duration) -> Result<Connections, TcpError> {
    let deadline = Instant::now() + timeout;
    let rank = link.rank();
    let listener = TcpListener::bind("0.0.0.0:0").map_err(broken(rank))?;
    let port = listener.local_addr().map_err(broken(rank))?.port();
    let name = host_name();
    let rows = gather(link, &(cookie(), name.clone(), port), deadline);
    let rows: Vec<(u64, String, u16)> = rows.map_err(|error| TcpError::Link(error.to_string()))?;
    // Rank 0's number counts.
    let Some(&(cookie, ..)) = rows.first() else { return Ok(Vec::new()) };
    // A machine need not know itself by its own name.
    let host = |host: String| if host == name { "127.0.0.1".to_owned() } else { host };
    let addresses: Vec<(String, u16)> = rows.into_iter().map(|(_, theirs, port)| (host(theirs), port)).collect();
    mesh(rank, 0, &listener, &addresses, cookie, deadline)
}

/// Connects to the ranks `first..rank`, takes the connections of those above; gives them from rank `first` on.
/// `addresses` begins with rank `first`'s.
fn mesh(
    rank: usize,
    first: usize,
    listener: &TcpListener,
    addresses: &[(String, u16)],
    cookie: u64,
    deadline: Instant,
) -> Result<Connections, TcpError> {
    let mut connections: Connections = addresses.iter().map(|_| None).collect();
    let mine = [cookie.to_le_bytes(), (rank as u64).to_le_bytes()].concat();
    for (peer, address) in (first..rank).zip(addresses) {
        let mut stream = connect(peer, address, deadline)?;
        stream.write_all(&mine).map_err(broken(peer))?;
        connections[peer - first] = Some(stream);
    }
    let above = rank + 1 - first;
    while connections[above..].iter().any(Option::is_none) {
        let Some(mut stream) = accept(listener, deadline)? else {
            let missing = (above..connections.len()).filter(|&place| connections[place].is_none());
            let at = (host_name(), listener.local_addr().map_or(0, |address| address.port()));
            return Err(TcpError::Missing { missing: missing.map(|place| place + first).collect(), at });
        };
        let Some([theirs, peer]) = introduction(&mut stream) else { continue };
        let peer = peer as usize;
        if theirs == cookie && peer > rank && peer - first < connections.len() {
            connections[peer - first] = Some(stream);
        }
    }
    Ok(connections)
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
            // Nobody there, or somebody who is gone again.
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// A connection to a rank that may not be there yet.
fn connect(peer: usize, address: &(String, u16), deadline: Instant) -> Result<TcpStream, TcpError> {
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
        for place in found {
            match TcpStream::connect_timeout(&place, left.min(MANNERS)) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error.kind(),
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// Rank, number of ranks and port of somebody who has connected; `None` if it does not say.
fn hello(stream: &mut TcpStream) -> Option<[u32; 3]> {
    let mut bytes = [0; 20];
    read_with_manners(stream, &mut bytes)?;
    let (magic, words) = bytes.split_at(8);
    let (words, _) = words.as_chunks();
    (magic == MAGIC).then_some(())?;
    <[u32; 3]>::try_from(words.iter().map(|&word| u32::from_le_bytes(word)).collect::<Vec<_>>()).ok()
}

/// The number by which ranks know each other, and a rank.
fn introduction(stream: &mut TcpStream) -> Option<[u64; 2]> {
    let mut bytes = [0; 16];
    read_with_manners(stream, &mut bytes)?;
    let (words, _) = bytes.as_chunks();
    <[u64; 2]>::try_from(words.iter().map(|&word| u64::from_le_bytes(word)).collect::<Vec<_>>()).ok()
}

fn read_with_manners(stream: &mut TcpStream, bytes: &mut [u8]) -> Option<()> {
    stream.set_read_timeout(Some(MANNERS)).ok()?;
    stream.read_exact(bytes).ok()?;
    stream.set_read_timeout(None).ok()
}

/// 1, then a text.
fn refuse<'a>(streams: impl Iterator<Item = &'a mut TcpStream>, reason: &str) {
    let mut bytes = vec![1];
    bytes.extend((reason.len() as u32).to_le_bytes());
    bytes.extend(reason.bytes());
    for stream in streams {
        // Who cannot hear it has gone.
        let _ = stream.write_all(&bytes);
    }
}

/// 0, the number by which ranks know each other, and host and port of each rank from 1 on.
fn write_table(cookie: u64, addresses: &[(String, u16)]) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend(cookie.to_le_bytes());
    for (host, port) in addresses {
        bytes.extend((host.len() as u16).to_le_bytes());
        bytes.extend(host.bytes());
        bytes.extend(port.to_le_bytes());
    }
    bytes
}

fn read_table(stream: &mut TcpStream, ranks: usize) -> Result<(u64, Vec<(String, u16)>), TcpError> {
    if take::<1>(stream)? == [1] {
        let length = u32::from_le_bytes(take(stream)?) as usize;
        return Err(TcpError::Refused(text(stream, length)?));
    }
    let cookie = u64::from_le_bytes(take(stream)?);
    let address = |_| {
        let length = u16::from_le_bytes(take(stream)?);
        let host = text(stream, usize::from(length))?;
        Ok((host, u16::from_le_bytes(take(stream)?)))
    };
    Ok((cookie, (1..ranks).map(address).collect::<Result<_, _>>()?))
}

fn take<const N: usize>(stream: &mut TcpStream) -> Result<[u8; N], TcpError> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).map_err(broken(0))?;
    Ok(bytes)
}

fn text(stream: &mut TcpStream, length: usize) -> Result<String, TcpError> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).map_err(broken(0))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn broken(rank: usize) -> impl Fn(std::io::Error) -> TcpError {
    move |error| TcpError::Broken { rank, error: error.kind() }
}

/// A number that another job hardly has: from the clock and this process's number.
fn cookie() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let seeds = [now.as_nanos() as u64, u64::from(std::process::id())];
    crate::link::checksum(&seeds.map(u64::to_le_bytes).concat())
}

/// This machine's name.
fn host_name() -> String {
    let file = std::fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|name| name.trim().to_owned());
    let name = file.or_else(|| std::env::var("HOSTNAME").ok()).filter(|name| !name.is_empty());
    name.unwrap_or_else(|| "localhost".to_owned())
}
