//! What an operation over a group of ranks needs of a link: messages between members.

use crate::link::error::LinkError;
use crate::link::header::{Header, Message};
use crate::stage::Payload;
use std::time::Instant;

/// Sends and receives messages of groups. Every [`Link`](crate::link::Link) implements it.
pub(in crate::link) trait GroupMessages {
    /// This rank.
    fn own_rank(&self) -> usize;

    /// See [`Link::send_in`](crate::link::Link::send_in).
    fn send_to_member(&mut self, group: usize, to: usize, message: Message, deadline: Instant)
    -> Result<(), LinkError>;

    /// See [`Link::receive_in`](crate::link::Link::receive_in).
    fn receive_from_member(
        &mut self,
        group: usize,
        from: usize,
        header: Header,
        deadline: Instant,
    ) -> Result<Payload, LinkError>;
}
