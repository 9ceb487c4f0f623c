//! The reading threads, one for each connection.

use super::packet::{LONGEST, Received, Sink};
use crate::link::error::{Failure, LinkError};
use crate::link::kit::endpoint::Peers;
use crate::link::kit::envelope::Envelope;
use crate::link::kit::frame::Frame;
use crate::link::monitor::Monitor;
use crate::link::wire_error::WireError;
use std::io::{BufReader, Error, ErrorKind, Read};
use std::sync::Arc;

/// Reads one connection.
pub(super) struct Reader<P> {
    /// The rank at its other end.
    pub(super) peer: usize,
    pub(super) peers: Arc<P>,
    pub(super) sink: Arc<Sink>,
}

/// How a connection ends.
enum End {
    /// The peer closed the link.
    Closed,
    /// The connection is gone.
    Broken(Error),
    /// The peer sent bytes that no rank sends.
    Garbled(LinkError),
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        End::Broken(error)
    }
}

impl<P: Peers> Reader<P> {
    /// The body of the thread; runs until the link or the connection ends.
    pub(super) fn run(self, stream: impl Read) {
        let mut input = BufReader::with_capacity(1 << 16, stream);
        let end = loop {
            if let Err(end) = self.packet(&mut input) {
                break end;
            }
        };
        let (me, peer) = (self.peers.mailbox().rank, self.peer);
        let message = match end {
            End::Closed => return,
            End::Broken(error) => format!(
                "its connection to rank {me} ended without being closed ({}): \
                 the rank was killed, or its machine is lost",
                error.kind()
            ),
            End::Garbled(error) => {
                self.peers.mailbox().break_off(error.clone());
                format!("rank {me} cannot read what rank {peer} sent: {error}")
            }
        };
        self.peers.abort(Failure { rank: peer, message });
    }

    fn packet(&self, input: &mut impl Read) -> Result<(), End> {
        let (mut kind, mut length) = ([0], [0; 4]);
        input.read_exact(&mut kind)?;
        input.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > LONGEST {
            return Err(self.garbled());
        }
        // Allocate for the bytes that arrive, not for the announced length.
        let mut bytes = Vec::new();
        if input.take(length as u64).read_to_end(&mut bytes)? < length {
            return Err(End::Broken(ErrorKind::UnexpectedEof.into()));
        }
        match kind {
            [0] => self.envelope(Envelope::read(&bytes).ok_or_else(|| self.garbled())?, input),
            [1] => {
                let frame = self.frame(&bytes)?;
                (self.sink)(self.peer, Received::Offer(frame));
                Ok(())
            }
            [2] => {
                (self.sink)(self.peer, Received::Note(bytes));
                Ok(())
            }
            _ => Err(self.garbled()),
        }
    }

    fn envelope(&self, envelope: Envelope, input: &mut impl Read) -> Result<(), End> {
        match envelope {
            Envelope::Message(frame) => {
                let frame = self.frame(&frame)?;
                let mut bodies = frame.buffers().map_err(|source| self.unreadable(source))?;
                for body in &mut bodies {
                    input.read_exact(body)?;
                }
                (self.sink)(self.peer, Received::Message(frame, bodies));
            }
            Envelope::Close => {
                self.peers.mailbox().handle(self.peer, envelope);
                return Err(End::Closed);
            }
            other => {
                if let Some(reply) = self.peers.mailbox().handle(self.peer, other) {
                    // This fails if the link has ended, and then nobody waits for the reply.
                    let _ = self.peers.send(self.peer, reply, Vec::new());
                }
            }
        }
        Ok(())
    }

    fn frame(&self, bytes: &[u8]) -> Result<Frame, End> {
        Frame::read(bytes).map_err(|source| self.unreadable(source))
    }

    fn unreadable(&self, source: WireError) -> End {
        End::Garbled(LinkError::Wire { rank: self.peers.mailbox().rank, peer: self.peer, source })
    }

    fn garbled(&self) -> End {
        let message = format!("rank {} sent bytes that no rank sends; build all ranks from one version", self.peer);
        End::Garbled(LinkError::Closed { rank: self.peers.mailbox().rank, message })
    }
}
