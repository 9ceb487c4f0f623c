//! Weight gradients deferred to `W`: the operations, the engine that runs them, and whole pipelines.

mod engine;
mod operations;
mod own;
mod parity;
