//! ZBAuto: the zero-bubble heuristic, which orders operations by their costs and by the memory limit.
//!
//! ```text
//! p=2 v=1 m=3, F = I = W = 1, memory for two activations (ZB-1P)
//! rank 0: 0F0 0F1     0I0 0W0 0F2 0I1 0W1 0I2 0W2
//! rank 1:     1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2
//! ```
//!
//! 1. [`heuristic`] builds an order and tracks the time, the memory and the bubble of every rank.
//! 2. It has three choices, as flags. All 8 combinations are built and the shortest (longest rank, first F to last
//!    W) is kept.
//!
//! Memory: F allocates `activation`, I frees `activation - weight_activation` of it, and W the rest. A limit of p
//! activations gives the paper's ZB-1P; 2p gives ZB-2P, whose bubble closes if F, I and W are about equal.
//! Source: Qi et al., Zero Bubble Pipeline Parallelism (2023), section 3.1; flags as in Sea AI Lab's scheduler.

mod heuristic;
mod options;
mod schedule;

pub use options::ZbAuto;
