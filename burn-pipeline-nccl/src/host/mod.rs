//! Everything that needs no CUDA: who launches a transfer first ([`turns`]), descriptions of collectives ([`sums`]),
//! NCCL's configuration ([`config`]), the link's timeout ([`timeout`]), and launches that the GPU may still use
//! ([`flights`]).

pub(crate) mod config;
pub(crate) mod flights;
pub(crate) mod sums;
pub(crate) mod timeout;
pub(crate) mod turns;
