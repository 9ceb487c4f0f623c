//! Schedules made of one repeated building block on a V, with memory set by the block (V-Half, V-Min, 1F1B-V).
//!
//! Guarantees: every F, I and W once on every rank, in an order that data dependencies allow, for any m >= 1;
//! the peak of activations (chunks, released at W) never above that of the plain repetition.
//!
//! A microbatch meets a rank four times: forward of chunk 0 (stage r), forward of chunk 1 (stage 2p-1-r),
//! backward of chunk 1, backward of chunk 0. A block says at which slot each of them runs.
//!
//! 1. Unroll: repeat the block every 6 slots, once a microbatch. A W goes into each free slot while one is due.
//! 2. Move the operations of warm-up and cool-down, W too, to the earliest free slot that their inputs allow and that does
//!    not raise the peak ([`reorder`]). The steady phase (from rank 0's first B0 to its last F0) stays.
//! 3. Squeeze: keep each rank's order, and start every operation as soon as its inputs are there and its rank is free.
//! 4. Remove the W; move the cool-down once more, taking each free slot for a W that is due; place the W as in 1; squeeze.
//! 5. Remove the W once more and put them into the slots that are free now, those of chunk 1 first.
//!
//! Source: Qi et al., Pipeline Parallelism with Controllable Memory (2024), and Sea AI Lab's scheduler. For
//! F = I = W the orders are identical to that scheduler's.

mod build;
mod reorder;
mod slots;

pub(super) use build::{build, build_whole};
