//! A link that counts the bytes of the messages between stages.

use burn::tensor::Device;
use burn_pipeline::link::{Link, LinkError, Message, MessageKind, ThreadLink, Threads};
use burn_pipeline::{Builder, Pipeline};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// The bytes of all messages between pipeline ranks, by sender, receiver and kind.
pub(crate) type Bytes = BTreeMap<(usize, usize, String), usize>;

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
    bytes: Arc<Mutex<Bytes>>,
}

impl Link for Watched {
    burn_pipeline::forward_link!(link: rank, ranks, monitor, to_device, set_activity, receive, all_gather, abort);

    fn send(&mut self, to: usize, message: Message, deadline: Instant) -> Result<(), LinkError> {
        let kind = kind(message.header.kind);
        if !kind.is_empty() {
            let key = (self.rank(), to, kind.to_owned());
            *self.bytes.lock().unwrap().entry(key).or_default() += message.payload.bytes();
        }
        self.link.send(to, message, deadline)
    }
}

/// Runs `body` on each rank, with a pipeline over watched links. Returns the bytes.
pub(crate) fn counted(
    ranks: usize,
    builder: impl Fn() -> Builder + Sync,
    body: impl Fn(&mut Pipeline) + Sync,
) -> Bytes {
    let (threads, bytes) = (Threads::new(ranks), Arc::new(Mutex::new(Bytes::new())));
    std::thread::scope(|scope| {
        for rank in 0..ranks {
            let link = Watched { link: threads.link(rank, Device::flex()), bytes: bytes.clone() };
            let (builder, body) = (&builder, &body);
            scope.spawn(move || body(&mut builder().build_rank(Box::new(link)).unwrap()));
        }
    });
    let bytes = bytes.lock().unwrap();
    bytes.clone()
}
