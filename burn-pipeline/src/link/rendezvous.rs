//! Where the processes of a job find each other.

use super::admission::Admission;

/// This process's rank, the address at which ranks find each other, and who may join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendezvous {
    /// This process's rank.
    pub rank: usize,
    /// The number of ranks.
    pub ranks: usize,
    /// Host name or IP address of rank 0, and the port at which it listens. Rank 0 listens only there; on rank 0,
    /// `0.0.0.0` and `::` mean all its addresses.
    pub address: (String, u16),
    /// Which processes may join; the same on all ranks.
    pub admission: Admission,
}
