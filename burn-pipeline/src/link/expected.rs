//! What a message will contain, known before it is sent.

use super::header::Header;
use super::kit::frame::Frame;
use crate::payload::PayloadSpec;

/// What the messages of one kind, for one stage, from one rank to another will contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedMessage {
    /// The rank that sends them.
    pub from: usize,
    /// The rank that receives them.
    pub to: usize,
    /// Their header, for any microbatch.
    pub header: Header,
    /// Structure, element types and shapes of their payloads.
    pub spec: PayloadSpec,
}

impl ExpectedMessage {
    /// The frame of such a message for microbatch 0; `None` if a size or an element type is unknown.
    pub fn frame(&self) -> Option<Frame> {
        Frame::expected(self.header, &self.spec)
    }
}
