//! Where ranks listen, and under which addresses other ranks reach them.
//!
//! Guarantees: a rank listens only at rank 0's named address, or at the address by which it reaches rank 0. It listens
//! at all addresses only if a name means loopback on its own machine, as on Debian, and another address elsewhere, or
//! if there is no such address ([`listen_anywhere`]). No rank from another machine gets a loopback address. If only
//! this machine's processes may join, only loopback is used.

use super::error::TcpError;
use super::handshake::Address;
use super::look_up::{LookUp, host};
use crate::link::rendezvous::Admission;
use std::io::{Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

/// How long a machine may take to look up its own name. After that it gives only its name.
const OWN_NAME: Duration = Duration::from_secs(2);

/// Rank 0's listeners.
pub(super) fn listen_at(at: &Address, admission: &Admission, deadline: Instant) -> Result<Vec<TcpListener>, TcpError> {
    let failed = |error: ErrorKind| TcpError::Listen { at: at.clone(), error };
    let mut look_up = LookUp::start(at);
    let mut places: Vec<SocketAddr> = look_up.usable(admission, deadline)?;
    if places.is_empty() {
        return Err(look_up.error());
    }
    places.iter_mut().for_each(|place| place.set_ip(reachable(place.ip(), host(at), admission)));
    listen_at_all(places).map_err(failed)
}

/// Binds a listener at each of these addresses, or at one of them that means all addresses.
fn listen_at_all(mut places: Vec<SocketAddr>) -> Result<Vec<TcpListener>, ErrorKind> {
    let (mut listeners, mut last) = (Vec::new(), ErrorKind::NotFound);
    places.sort_unstable();
    places.dedup();
    // A port cannot have listeners at all addresses and at one of them. IPv6's takes connections of both kinds.
    let everywhere = places.iter().any(|place| place.ip().is_unspecified());
    if everywhere {
        places.retain(|place| place.ip().is_unspecified());
        places.reverse();
    }
    for place in places {
        match TcpListener::bind(place) {
            Ok(listener) => {
                listeners.push(listener);
                if everywhere {
                    break;
                }
            }
            // Another process listens there, and would be taken for this one.
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Err(error.kind()),
            Err(error) => last = error.kind(),
        }
    }
    if listeners.is_empty() { Err(last) } else { Ok(listeners) }
}

/// Binds a listener for a rank that has reached rank 0 at this address over this connection. Returns it with its
/// port.
pub(super) fn listen_beside(
    connection: &TcpStream,
    at: &Address,
    admission: &Admission,
) -> Result<(TcpListener, u16), Error> {
    let listener = TcpListener::bind((reachable(connection.local_addr()?.ip(), host(at), admission), 0))?;
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

/// Binds a listener at all addresses of this machine. Returns it with its port.
pub(super) fn listen_anywhere() -> Result<(TcpListener, u16), Error> {
    // The first takes connections of both kinds. It fails if there is no IPv6.
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).or_else(|_| TcpListener::bind("0.0.0.0:0"))?;
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

/// Where to listen for ranks that know this address as `host`: at all addresses, if a name means loopback here.
fn reachable(ip: IpAddr, host: &str, admission: &Admission) -> IpAddr {
    let means_loopback = host.parse::<IpAddr>().is_ok() || host == "localhost";
    match ip {
        _ if !ip.is_loopback() || means_loopback || *admission == Admission::ThisMachine => ip,
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// The address of a rank that reached rank 0 from `seen`, for a rank that has reached rank 0 at `reached`.
pub(super) fn for_rank(seen: IpAddr, reached: IpAddr) -> IpAddr {
    // A listener for both kinds of addresses sees IPv4 addresses as IPv6.
    let (seen, reached) = (seen.to_canonical(), reached.to_canonical());
    // A rank on rank 0's machine is reached as rank 0 is.
    if seen.is_loopback() { reached } else { seen }
}

/// This machine's name.
pub(super) fn host_name() -> String {
    gethostname::gethostname().to_string_lossy().into_owned()
}

/// The hosts under which this machine may be reached: the addresses of its routes, those behind its name, its name.
pub(super) fn own_hosts(deadline: Instant) -> Vec<String> {
    // Connecting a datagram socket sends nothing: it makes the system choose the source address. The addresses are
    // reserved for documentation (RFC 5737, RFC 3849).
    let route = |from: &str, to: &str| {
        let socket = UdpSocket::bind(from).ok()?;
        socket.connect(to).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let routes = [route("0.0.0.0:0", "192.0.2.1:9"), route("[::]:0", "[2001:db8::1]:9")];
    let own = (host_name(), 0);
    let mut look_up = LookUp::start(&own);
    let named = look_up.wait(deadline.min(Instant::now() + OWN_NAME)).iter().map(SocketAddr::ip);
    let all = routes.into_iter().flatten().chain(named);
    let mut hosts: Vec<String> = Vec::new();
    for ip in all.filter(|ip| !ip.is_loopback() && !ip.is_unspecified()) {
        if !hosts.contains(&ip.to_string()) {
            hosts.push(ip.to_string());
        }
    }
    hosts.push(own.0);
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::rendezvous::Secret;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_name_that_is_loopback_on_its_own_machine_is_listened_at_everywhere_and_an_address_only_where_it_is() {
        let secret = Admission::Secret(Secret::new("s"));
        for (found, host, admission, listens) in [
            ("127.0.1.1", "node7", &secret, "0.0.0.0"),
            ("::1", "node7", &Admission::Anyone, "::"),
            ("127.0.1.1", "node7", &Admission::ThisMachine, "127.0.1.1"),
            ("127.0.0.1", "127.0.0.1", &secret, "127.0.0.1"),
            ("127.0.0.1", "localhost", &secret, "127.0.0.1"),
            ("::1", "::1", &secret, "::1"),
            ("10.0.0.3", "node7", &secret, "10.0.0.3"),
        ] {
            assert_eq!(reachable(ip(found), host, admission), ip(listens), "{found} {host} {admission:?}");
        }
    }

    #[test]
    fn loopback_is_handed_only_to_ranks_of_the_same_machine() {
        assert_eq!(for_rank(ip("127.0.0.1"), ip("10.0.0.1")), ip("10.0.0.1"));
        assert_eq!(for_rank(ip("127.0.0.1"), ip("127.0.0.1")), ip("127.0.0.1"));
        assert_eq!(for_rank(ip("10.0.0.2"), ip("10.0.0.1")), ip("10.0.0.2"));
        assert_eq!(for_rank(ip("::ffff:127.0.0.1"), ip("::ffff:10.0.0.1")), ip("10.0.0.1"));
        assert!(
            own_hosts(Instant::now() + OWN_NAME)
                .iter()
                .all(|host| host.parse::<IpAddr>().is_ok_and(|ip| !ip.is_loopback()) || *host == host_name())
        );
    }

    #[test]
    fn of_names_that_mean_all_addresses_and_one_of_them_one_is_listened_at() {
        let free = TcpListener::bind("0.0.0.0:0").and_then(|listener| listener.local_addr()).unwrap().port();
        let places = |ips: &[&str]| ips.iter().map(|text| SocketAddr::new(ip(text), free)).collect::<Vec<_>>();
        for ips in [&["127.0.0.1", "0.0.0.0"][..], &["0.0.0.0", "127.0.0.1", "0.0.0.0"], &["127.0.0.1", "127.0.0.1"]] {
            assert_eq!(listen_at_all(places(ips)).unwrap().len(), 1, "{ips:?}");
        }
    }
}
