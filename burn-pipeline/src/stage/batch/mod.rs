//! A batch, its microbatches, and what the loss of a microbatch means for the whole batch.
//!
//! Reading order: [`loss`] (the loss contract), [`split`] (rules), [`whole`] (the batch), [`microbatches`] (cutting
//! it, and its checksum), [`pre_cut`] (batches given as microbatches), [`join`] (joining outputs).

mod join;
mod loss;
mod microbatches;
mod pre_cut;
mod split;
mod whole;

pub use loss::{LOSS_SEED, Loss, Reduction, Weight};
pub(crate) use loss::{LossPart, loss_seed};
pub use microbatches::Microbatches;
pub use split::{MicrobatchError, Split};
pub use whole::Batch;
