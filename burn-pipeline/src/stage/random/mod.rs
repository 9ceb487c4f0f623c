//! Random numbers that depend only on seeds, whatever rank draws them and when.

mod drawn;
mod following;
mod forward_seed;
mod init;
mod of_layers;

pub(in crate::stage) use following::{Drawn, RngProbe};
pub(crate) use forward_seed::{ForwardSeed, mixed};
pub(in crate::stage) use init::device_generator;
pub use init::init_seeded;
pub(crate) use init::is_seeding;
pub(in crate::stage) use of_layers::drawing;
pub(crate) use of_layers::random;
