//! What the examples, tests and benches share: a GPT cut into stages with its training on a text, and a U-Net.

pub mod bigram;
pub mod corpus;
pub mod device;
pub mod expert_load;
pub mod generate;
pub mod generation;
pub mod gpt;
pub mod learning_rate;
pub mod moe_gpt;
pub mod moe_options;
pub mod moe_run;
pub mod moe_training;
pub mod network;
pub mod options;
pub mod random;
pub mod run;
pub mod saved;
pub mod step_log;
pub mod traces;
pub mod training;
pub mod unet;
