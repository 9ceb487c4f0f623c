//! What needs no CUDA: the order of transfers ([`pairing`]), what members of a group add up ([`sums`]), NCCL's configuration
//! ([`config`]), how long the link waits ([`timeout`]), how its thread ends ([`ending`]), and what the GPU may still use
//! ([`flights`]).

pub(crate) mod config;
pub(crate) mod ending;
pub(crate) mod flights;
pub(crate) mod pairing;
pub(crate) mod sums;
pub(crate) mod timeout;
