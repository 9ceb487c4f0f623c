//! Trainings under Burn's own loop as pipelines, against Burn's own strategy for one device: metrics of every item, final
//! weights, the epoch in which training stops, and what goes on from a checkpoint.

mod classifier;
mod endings;
mod parity;
mod training;
