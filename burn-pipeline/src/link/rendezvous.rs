//! Where the processes of a job find each other, which of them may join over TCP, and the secret that they share.

use std::fmt;

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

/// Which processes may join a job over TCP.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Admission {
    /// Processes that prove that they know the secret, from any machine. Both ends of every connection prove it
    /// before they read anything else.
    Secret(Secret),
    /// Processes of this machine: ranks listen at and connect to loopback addresses only.
    #[default]
    ThisMachine,
    /// Any process that reaches the port. Choose it only where you trust everybody in the network.
    Anyone,
}

impl Admission {
    /// Returns true if the secret is empty, which everybody can prove.
    pub(super) fn proves_nothing(&self) -> bool {
        matches!(self, Self::Secret(secret) if secret.0.is_empty())
    }
}

/// Bytes that only the ranks of a job know: a long random text (`openssl rand -hex 32`).
///
/// It is never sent. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Makes a secret of these bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
