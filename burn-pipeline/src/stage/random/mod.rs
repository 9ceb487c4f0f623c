//! Random numbers that depend on seeds alone, whatever rank draws them and when.

mod forward_seed;
mod init;

pub use forward_seed::ForwardSeed;
pub(crate) use forward_seed::mixed;
pub use init::init_seeded;
