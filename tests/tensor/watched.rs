//! A link that records the messages between stages, and those that it is told to expect.

use burn::tensor::Device;
use burn_pipeline::link::{ExpectedMessage, Link, LinkError, Message, MessageKind, ThreadLink, Threads};
use burn_pipeline::payload::PayloadSpec;
use burn_pipeline::{Builder, Pipeline};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// The bytes of all messages between pipeline ranks, by sender, receiver and kind.
pub(crate) type Bytes = BTreeMap<(usize, usize, String), usize>;

/// The traffic over the links of a job.
#[derive(Clone, Default)]
pub(crate) struct Traffic {
    /// The messages between pipeline ranks with their bytes, in each sender's order.
    pub(crate) sent: Vec<(ExpectedMessage, usize)>,
    /// The messages that any rank was told to expect.
    pub(crate) expected: Vec<ExpectedMessage>,
}

impl Traffic {
    /// The bytes by sender, receiver and kind.
    pub(crate) fn bytes(&self) -> Bytes {
        let mut bytes = Bytes::new();
        for (message, of) in &self.sent {
            *bytes.entry((message.from, message.to, kind(message.header.kind).to_owned())).or_default() += of;
        }
        bytes
    }
}

/// The kind of a message between pipeline ranks; empty for all others.
fn kind(kind: MessageKind) -> &'static str {
    match kind {
        MessageKind::Activation => "activation",
        MessageKind::Gradient => "gradient",
        MessageKind::Skip { .. } => "skip",
        MessageKind::SkipGradient { .. } => "skip gradient",
        _ => "",
    }
}

struct Watched {
    link: ThreadLink,
    traffic: Arc<Mutex<Traffic>>,
}

impl Link for Watched {
    burn_pipeline::forward_link!(link: rank, ranks, monitor, to_device, set_activity, receive, all_gather, abort);

    fn send(&mut self, to: usize, message: Message, deadline: Instant) -> Result<(), LinkError> {
        let header = message.header;
        if !kind(header.kind).is_empty() {
            let spec = PayloadSpec::of_payload(&message.payload);
            let sent = (ExpectedMessage { from: self.rank(), to, header, spec }, message.payload.bytes());
            self.traffic.lock().unwrap().sent.push(sent);
        }
        self.link.send(to, message, deadline)
    }

    fn expect(&mut self, messages: &[ExpectedMessage]) -> Result<(), LinkError> {
        self.traffic.lock().unwrap().expected.extend(messages.iter().cloned());
        self.link.expect(messages)
    }
}

/// Runs `body` on each rank, with a pipeline over watched links. Returns the traffic.
pub(crate) fn watched(
    ranks: usize,
    builder: impl Fn() -> Builder + Sync,
    body: impl Fn(&mut Pipeline) + Sync,
) -> Traffic {
    let (threads, traffic) = (Threads::new(ranks), Arc::new(Mutex::new(Traffic::default())));
    std::thread::scope(|scope| {
        for rank in 0..ranks {
            let link = Watched { link: threads.link(rank, Device::flex()), traffic: traffic.clone() };
            let (builder, body) = (&builder, &body);
            scope.spawn(move || body(&mut builder().build_rank(Box::new(link)).unwrap()));
        }
    });
    let traffic = traffic.lock().unwrap();
    traffic.clone()
}

/// Like [`watched`], for the bytes alone.
pub(crate) fn counted(
    ranks: usize,
    builder: impl Fn() -> Builder + Sync,
    body: impl Fn(&mut Pipeline) + Sync,
) -> Bytes {
    watched(ranks, builder, body).bytes()
}
