//! What the examples, tests and benches share: a GPT cut into stages.

pub mod gpt;
