//! What the examples, tests and benches share: a GPT cut into stages, and its training on a text.

pub mod bigram;
pub mod corpus;
pub mod device;
pub mod generate;
pub mod generation;
pub mod gpt;
pub mod learning_rate;
pub mod options;
pub mod random;
pub mod run;
pub mod saved;
pub mod step_log;
pub mod traces;
pub mod training;
