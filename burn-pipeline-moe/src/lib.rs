//! Mixture-of-experts models on top of `burn-pipeline`: layers, their auxiliary losses on every stage, and the side
//! data that stages read.
//!
//! 1. [`router`]: scores, top-k choice, gates, and the places of tokens with their experts.
//! 2. [`layers`]: experts as batched products, shared experts, transformer blocks, mixture of depths,
//!    multi-token prediction.
//! 3. [`losses`]: what a router is to be blamed for, as plain functions of its outputs.
//! 4. [`auxiliary`]: those values per layer, averaged by kind over the whole model, and injected on each stage.
//! 5. [`balance`]: balancing without a loss, by a bias that every step moves.
//! 6. [`ops`]: the injection itself, an operation beneath Burn's autodiff.
//! 7. [`structure`]: document ids and other side data of a batch.
//! 8. [`cost`]: blocks as layers for partitioners, experts counted.
//!
//! # Auxiliary losses in a pipeline
//!
//! Only the last stage computes the main loss, but every stage has routers. A stage adds up its layers' auxiliary
//! losses and *injects* the sum into its hidden states: the forward is the identity, the backward gives the sum a
//! gradient of its own. That gradient must weigh as the main loss of the same microbatch does, so the runtime hands
//! the loss's seed to whoever names [`LOSS_SEED`](burn_pipeline::stage::LOSS_SEED) among its extras. Cutting,
//! accumulation and scaling then treat both alike, and gradients equal those of `main + auxiliary` on one device.

pub mod auxiliary;
pub mod balance;
pub mod cost;
pub mod extras;
pub mod layers;
pub mod losses;
pub mod ops;
pub mod router;
