//! Where the processes of a job find each other.

/// This process's rank, and the address at which the ranks find each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendezvous {
    /// This process's rank.
    pub rank: usize,
    /// The number of ranks.
    pub ranks: usize,
    /// Host name or IP address of rank 0, and the port at which it listens.
    pub address: (String, u16),
}
