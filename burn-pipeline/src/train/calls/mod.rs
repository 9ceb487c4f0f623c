//! A pipeline's methods, each with the commands that it sends to the ranks.
//!
//! Read `step` (training), `evaluate`, `read` (weights, gradients, modules), `step_to` (weights that the caller
//! stepped), `replace` (a stage's module) and `metadata`; `outcomes` is what ranks measured.

mod evaluate;
mod metadata;
mod offer;
mod outcomes;
mod read;
mod replace;
mod step;
mod step_to;
