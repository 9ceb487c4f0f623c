//! How a link over NCCL is made.

use super::order::Ordering;
use std::time::Duration;

/// How a link over NCCL is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NcclOptions {
    /// How the order between computing and transfers is kept.
    pub ordering: Ordering,
    /// The longest that ranks may take to connect and to join. Later waits, a transfer in the queue among them, last as long as
    /// the pipeline's timeout (`Builder::timeout`).
    pub timeout: Duration,
    /// Whether sums over groups are made by the lowest member, in rank order: bit-equal to those of other links, but all
    /// bytes go through one rank. Otherwise NCCL sums, in an order that depends on the number of members.
    pub ordered_sums: bool,
}

impl Default for NcclOptions {
    /// Order on the host, a timeout of one minute, and NCCL's own sums.
    fn default() -> Self {
        Self { ordering: Ordering::Host, timeout: Duration::from_secs(60), ordered_sums: false }
    }
}
