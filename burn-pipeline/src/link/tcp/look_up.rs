//! Looks up the addresses behind a host name.
//!
//! Guarantees: nobody waits for a look-up beyond its deadline. A look-up cannot be cancelled, so it has its own
//! thread, which ends when the system answers. A numeric address needs no look-up.

use super::error::TcpError;
use super::handshake::Address;
use crate::link::rendezvous::Admission;
use std::io::Error;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// The pause between two look-ups of one name.
const PAUSE: Duration = Duration::from_millis(500);

/// A host and port whose addresses are looked up.
pub(super) struct LookUp<'a> {
    at: &'a Address,
    /// The answer that is still to come.
    answer: Option<Receiver<Answer>>,
    began: Instant,
    /// The last answer, or why there is none.
    known: Result<Vec<SocketAddr>, String>,
}

impl<'a> LookUp<'a> {
    /// Starts the look-up.
    pub(super) fn start(at: &'a Address) -> Self {
        let host = host(at);
        let known = host.parse::<IpAddr>().map(|ip| vec![SocketAddr::new(ip, at.1)]);
        let answer = known.is_err().then(|| {
            let name = (host.to_owned(), at.1);
            ask(move || Ok(name.to_socket_addrs()?.collect()))
        });
        let known = known.map_err(|_| "its look-up has not been answered yet".to_owned());
        Self { at, answer, began: Instant::now(), known }
    }

    /// Waits for an answer until the given time. Returns the addresses that are known then.
    pub(super) fn wait(&mut self, until: Instant) -> &[SocketAddr] {
        let left = until.saturating_duration_since(Instant::now());
        let answer = self.answer.as_ref().and_then(|answer| answer.recv_timeout(left).ok());
        if let Some(answer) = answer {
            self.answer = None;
            self.known = answer.map_err(|error| error.to_string());
        }
        self.known.as_deref().unwrap_or_default()
    }

    /// Looks the name up again some time after the last answer: a name that is unknown now may be known when all
    /// machines are up.
    pub(super) fn renew(&mut self) {
        if self.answer.is_none() && self.began.elapsed() >= PAUSE && host(self.at).parse::<IpAddr>().is_err() {
            *self = Self { known: self.known.clone(), ..Self::start(self.at) };
        }
    }

    /// As [`LookUp::wait`], but returns only the addresses that may be used.
    ///
    /// # Errors
    /// Returns [`TcpError::NoSecret`] if there are addresses, and none may be used.
    pub(super) fn usable(&mut self, admission: &Admission, until: Instant) -> Result<Vec<SocketAddr>, TcpError> {
        let found = self.wait(until).to_vec();
        let any = !found.is_empty();
        let usable = |address: &SocketAddr| *admission != Admission::ThisMachine || address.ip().is_loopback();
        let usable: Vec<SocketAddr> = found.into_iter().filter(usable).collect();
        if any && usable.is_empty() { Err(TcpError::NoSecret { at: self.at.clone() }) } else { Ok(usable) }
    }

    /// The error if the name has no address.
    pub(super) fn error(&self) -> TcpError {
        let reason = self.known.as_ref().err().cloned().unwrap_or_else(|| "it has no address".to_owned());
        TcpError::Host { host: self.at.0.clone(), reason }
    }
}

/// A host without the brackets around an IPv6 address.
pub(super) fn host(at: &Address) -> &str {
    at.0.trim_start_matches('[').trim_end_matches(']')
}

/// The system's answer for a name.
type Answer = Result<Vec<SocketAddr>, Error>;

/// Looks up on a separate thread.
fn ask(look_up: impl FnOnce() -> Answer + Send + 'static) -> Receiver<Answer> {
    let (sender, answer) = channel();
    let failed = sender.clone();
    let body = move || {
        // This fails if nobody waits any more.
        let _ = sender.send(look_up());
    };
    if let Err(error) = Builder::new().name("tcp look-up".to_owned()).spawn(body) {
        let _ = failed.send(Err(error));
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::rendezvous::Secret;

    fn at(host: &str) -> Address {
        (host.to_owned(), 1)
    }

    fn usable(host: &str, admission: &Admission) -> Result<Vec<SocketAddr>, TcpError> {
        LookUp::start(&at(host)).usable(admission, Instant::now() + Duration::from_secs(10))
    }

    #[test]
    fn without_a_secret_only_loopback_is_used() {
        for host in ["10.0.0.1", "0.0.0.0"] {
            assert_eq!(usable(host, &Admission::ThisMachine), Err(TcpError::NoSecret { at: at(host) }));
            assert!(usable(host, &Admission::Anyone).is_ok_and(|found| found.len() == 1));
        }
        assert!(usable("[::1]", &Admission::ThisMachine).is_ok_and(|found| found.len() == 1));
        assert!(usable("localhost", &Admission::ThisMachine).is_ok_and(|found| !found.is_empty()));
    }

    #[test]
    fn a_look_up_that_is_not_answered_is_not_waited_for_and_an_answer_that_comes_late_is_taken() {
        let name = at("node7");
        let address: SocketAddr = "10.0.0.7:1".parse().unwrap();
        let (answer, asked) = channel();
        let slow = ask(move || {
            let _ = asked.recv();
            Ok(vec![address])
        });
        let mut look_up = LookUp { answer: Some(slow), ..LookUp::start(&name) };
        let (began, secret) = (Instant::now(), Admission::Secret(Secret::new("s")));
        assert_eq!(look_up.usable(&secret, began + Duration::from_millis(20)), Ok(Vec::new()));
        let error = look_up.error().to_string();
        assert!(error.contains("node7") && error.contains("not been answered"), "{error}");
        answer.send(()).unwrap();
        assert_eq!(look_up.usable(&secret, began + Duration::from_secs(60)), Ok(vec![address]));
    }
}
