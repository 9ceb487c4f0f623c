//! Random numbers that depend on seeds alone, whatever rank draws them and when.

mod forward_seed;
mod init;

pub(crate) use forward_seed::{ForwardSeed, mixed};
pub use init::init_seeded;
