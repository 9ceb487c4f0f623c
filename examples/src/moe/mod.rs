//! The GPT with mixtures of experts that `train_moe` trains.
//!
//! In reading order: `gpt` (the model and its cut), `part` (runs one stage of it), `list` (the same as a list of
//! layers), `signal` (the values between stages), `sides` (side data of a batch), `options` (flags), `record` (what a
//! step's routers did).

pub mod cost;
pub mod cut;
pub mod enrich;
pub mod expert_load;
pub mod gpt;
pub mod list;
pub mod load_curves;
pub mod options;
pub mod part;
pub mod part_options;
pub mod record;
pub mod sides;
pub mod signal;
