//! The queues of transfers: each lane has a communicator, a stream, and launches in flight.

use super::communicator::Communicator;
use super::error::NcclError;
use super::gpu::{Gpu, Stream};
use super::launch::Flight;
use crate::host::flights::Flights;

/// One lane's queue.
pub(super) struct Queue {
    pub(super) communicator: Communicator,
    pub(super) stream: Stream,
    pub(super) flights: Flights<Flight>,
}

impl Queue {
    pub(super) fn new(communicator: Communicator, gpu: &Gpu, high_priority: bool) -> Result<Self, NcclError> {
        Ok(Self { communicator, stream: Stream::new(gpu, high_priority)?, flights: Flights::default() })
    }
}
