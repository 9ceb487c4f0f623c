//! What needs no CUDA: the order of transfers ([`pairing`]), what members of a group add up ([`sums`]), NCCL's configuration
//! ([`config`]).

pub(crate) mod config;
pub(crate) mod pairing;
pub(crate) mod sums;
