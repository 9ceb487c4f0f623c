//! What a rank exchanges with others outside of its row: a value of every rank, and single messages.
//!
//! Guarantees: each wait ends at the timeout, and errors of the link name the rank. Every message is a change of
//! activity, so that a long exchange counts as progress.

use super::error::ExecuteError;
use super::executor::Executor;
use crate::link::{Activity, Header, Link, Message, gather};
use crate::payload::Payload;
use serde::Serialize;
use serde::de::DeserializeOwned;

impl Executor {
    /// Gives every rank the values of all ranks, in rank order. All ranks must call it in the same order.
    pub(crate) fn gather<T: Serialize + DeserializeOwned>(&mut self, own: &T) -> Result<Vec<T>, ExecuteError> {
        let deadline = self.deadline();
        self.link.set_activity(Activity::Gathering);
        gather(&mut self.link, own, deadline).map_err(|source| self.link_error(None, source))
    }

    pub(crate) fn send_to(&mut self, to: usize, header: Header, payload: Payload) -> Result<(), ExecuteError> {
        let deadline = self.deadline();
        self.link.set_activity(Activity::Gathering);
        let sent = self.link.send(to, Message { header, payload }, deadline);
        sent.map_err(|source| self.link_error(None, source))
    }

    pub(crate) fn receive_from(&mut self, from: usize, header: Header) -> Result<Payload, ExecuteError> {
        let deadline = self.deadline();
        self.link.set_activity(Activity::Waiting(header, from));
        self.link.receive(from, header, deadline).map_err(|source| self.link_error(None, source))
    }
}
