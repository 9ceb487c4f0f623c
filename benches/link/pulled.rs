//! A link that sends nothing ahead: a message starts when its receiver waits for it.
//!
//! The control for overlap: the same plan and transport, with no transfer concurrent with a computation. A sent
//! message waits at its sender, where a thread sends it on request. There are two ranks; each direction has two
//! separate links, for requests and for messages, and one more link is for everything else.

use burn_pipeline::link::{Header, Link, LinkError, Message, MessageKind};
use burn_pipeline::payload::Payload;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// The timeout of a wait for a request.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A rank's ends: over which it is asked, asks, sends, receives; and the common one for gathers and failures.
pub(crate) struct Ends {
    pub(crate) asked: Box<dyn Link>,
    pub(crate) asks: Box<dyn Link>,
    pub(crate) sends: Box<dyn Link>,
    pub(crate) receives: Box<dyn Link>,
    pub(crate) common: Box<dyn Link>,
}

pub(crate) struct Pulled {
    asks: Box<dyn Link>,
    receives: Box<dyn Link>,
    common: Box<dyn Link>,
    kept: Sender<Message>,
}

fn question() -> Header {
    Header::of(MessageKind::Timing)
}

/// The last request: the thread at the other end does not recognise it, and ends.
fn last() -> Header {
    Header::of(MessageKind::Output)
}

impl Pulled {
    pub(crate) fn new(ends: Ends) -> Self {
        let Ends { mut asked, asks, mut sends, receives, common } = ends;
        let (kept, messages) = channel::<Message>();
        let peer = 1 - asked.rank();
        // Ends when the other rank requests no more, or this one has no more messages.
        std::thread::spawn(move || {
            while asked.receive(peer, question(), Instant::now() + TIMEOUT).is_ok() {
                let Ok(message) = messages.recv() else { return };
                sends.send(peer, message, Instant::now() + TIMEOUT).unwrap();
            }
        });
        Self { asks, receives, common, kept }
    }
}

impl Drop for Pulled {
    fn drop(&mut self) {
        let peer = 1 - self.asks.rank();
        // If the other rank is gone, so is its thread.
        let _ = self.asks.send(peer, Message { header: last(), payload: Payload::default() }, Instant::now());
    }
}

impl Link for Pulled {
    burn_pipeline::forward_link!(common: rank, ranks, monitor, to_device, set_activity, all_gather, abort);

    fn send(&mut self, _: usize, message: Message, _: Instant) -> Result<(), LinkError> {
        let closed = LinkError::Closed { rank: self.rank(), message: "the thread that sends has ended".to_owned() };
        self.kept.send(message).map_err(|_| closed)
    }

    fn receive(&mut self, from: usize, header: Header, deadline: Instant) -> Result<Payload, LinkError> {
        self.asks.send(from, Message { header: question(), payload: Payload::default() }, deadline)?;
        self.receives.receive(from, header, deadline)
    }
}
