//! What a user calls on a pipeline, each call with the commands that it gives to the ranks.
//!
//! Read `step` (training), `evaluate`, `read` (weights, gradients, modules), `step_to` (weights that the caller
//! stepped), `replace` (another module in a stage's place), `exchange` (values of the caller's own) and `metadata`; `outcomes`
//! is how ranks in processes exchange what a batch gave.

mod evaluate;
mod exchange;
mod metadata;
mod outcomes;
mod read;
mod replace;
mod step;
mod step_to;
