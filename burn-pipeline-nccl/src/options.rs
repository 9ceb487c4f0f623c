//! How a link over NCCL is made.

use crate::order::Ordering;
use std::time::Duration;

/// How a link over NCCL is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NcclOptions {
    /// How the order between computing and transfers is kept.
    pub ordering: Ordering,
    /// The longest that ranks may take to meet and to join, and that a transfer may stand in the queue.
    pub timeout: Duration,
    /// Sums over groups are made by the lowest member, in rank order, as on other links: bit-equal to theirs, at the cost
    /// of all bytes going through one rank. Otherwise by NCCL, whose order depends on the number of members.
    pub ordered_sums: bool,
}

impl Default for NcclOptions {
    /// Order on the host, a minute, and NCCL's own sums.
    fn default() -> Self {
        Self { ordering: Ordering::Host, timeout: Duration::from_secs(60), ordered_sums: false }
    }
}
