//! Schedules that repeat one building block on a V, with memory set by the block (V-Half, V-Min, 1F1B-V).
//!
//! Guarantees: every F, I and W once on every rank, in an order that data dependencies allow, for any m >= 1. The
//! peak of activations (chunks, released at W) is never above that of the plain repetition.
//!
//! A microbatch visits a rank four times: forward of chunk 0 (stage r), forward of chunk 1 (stage 2p-1-r), backward
//! of chunk 1, backward of chunk 0. A block gives the slot of each visit.
//!
//! 1. Unroll: repeat the block every 6 slots, once per microbatch. Put a W into each free slot while one is due.
//! 2. Move the operations of warm-up and cool-down, including W, to the earliest free slot that their inputs allow
//!    and that does not raise the peak ([`reorder`]). The steady phase (from rank 0's first B0 to its last F0)
//!    stays.
//! 3. Squeeze: keep each rank's order, and start every operation as soon as its inputs are available and its rank
//!    is free.
//! 4. Remove the W. Move the cool-down once more, counting each free slot as a W if one is due. Place the W as in
//!    1; squeeze.
//! 5. Remove the W once more and place them in the slots that are now free, those of chunk 1 first.
//!
//! Source: Qi et al., Pipeline Parallelism with Controllable Memory (2024), and Sea AI Lab's scheduler. For F = I =
//! W the orders are identical to that scheduler's.

mod build;
mod reorder;
mod slots;

pub(super) use build::{build, build_whole};
