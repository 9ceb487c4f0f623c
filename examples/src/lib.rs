//! Code that the examples, tests and benches share: a GPT cut into stages and its training on a text, the same with
//! mixtures of experts, and a U-Net.
//!
//! The programs `train_gpt`, `train_moe` and `generate_gpt` are in the folder above. They are also modules here, so
//! that tests can run them in their own process.

// The programs refer to this crate by name, as when they are built as examples.
extern crate self as pipeline_examples;

pub mod bigram;
pub mod console;
pub mod corpus;
pub mod cut;
pub mod device;
pub mod generate;
#[path = "../generate_gpt.rs"]
pub mod generate_gpt;
pub mod gpt;
pub mod learning_rate;
mod line_chart;
pub mod moe;
pub mod mpirun;
pub mod network;
pub mod options;
pub mod options_error;
pub mod processes;
pub mod program;
pub mod random;
pub mod saved;
pub mod setup;
pub mod step_log;
pub mod traces;
#[path = "../train_gpt.rs"]
pub mod train_gpt;
#[path = "../train_moe.rs"]
pub mod train_moe;
pub mod training;
pub mod unet;
