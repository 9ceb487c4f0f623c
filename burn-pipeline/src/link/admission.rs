//! Which processes may join a job over TCP, and the secret that the ranks of a job share.

use std::fmt;

/// Bytes that all ranks of a job know, and nobody else: a long random text (`openssl rand -hex 32`).
///
/// It never travels. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// The secret of these bytes.
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

/// Which processes may join a job over TCP.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Admission {
    /// Those that prove to know the secret, from any machine. Both ends of every connection prove it before they read
    /// anything else.
    Secret(Secret),
    /// Those of this machine: only loopback addresses are listened at and connected to.
    #[default]
    ThisMachine,
    /// Any process that reaches the port. Choose it only where you trust everybody in the network.
    Anyone,
}

impl Admission {
    /// Whether it asks for a secret that everybody knows.
    pub(super) fn proves_nothing(&self) -> bool {
        matches!(self, Self::Secret(secret) if secret.0.is_empty())
    }
}
