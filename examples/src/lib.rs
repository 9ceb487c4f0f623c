//! What the examples, tests and benches share: a GPT cut into stages with its training on a text, the same with
//! mixtures of experts, and a U-Net.

pub mod bigram;
pub mod corpus;
pub mod cut;
pub mod device;
pub mod generate;
pub mod generation;
pub mod gpt;
pub mod learning_rate;
mod line_chart;
pub mod moe;
pub mod network;
pub mod options;
pub mod options_error;
pub mod processes;
pub mod random;
pub mod run;
pub mod saved;
pub mod step_log;
pub mod traces;
pub mod training;
pub mod unet;
