//! Options of a link over NCCL.

use super::order::Ordering;
use std::time::Duration;

/// Options of a link over NCCL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NcclOptions {
    /// How computing and transfers are ordered.
    pub ordering: Ordering,
    /// The longest time for ranks to connect and join. Later waits, including transfers in the queue, last as long
    /// as the pipeline's timeout (`Builder::timeout`).
    pub timeout: Duration,
    /// If true, the lowest member sums over groups in rank order: bitwise equal to other links, but all bytes go
    /// through one rank. If false, NCCL sums, in an order that depends on the number of members.
    pub ordered_sums: bool,
    /// If true, transfers have the highest priority that the GPU has: their blocks start before those of kernels that
    /// compute, as soon as a processor is free. Not measured yet.
    pub high_priority: bool,
}

impl Default for NcclOptions {
    /// Ordering on the host, a timeout of one minute, NCCL's own sums, and the default priority.
    fn default() -> Self {
        let timeout = Duration::from_secs(60);
        Self { ordering: Ordering::Host, timeout, ordered_sums: false, high_priority: false }
    }
}
