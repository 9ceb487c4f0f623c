//! A batch, its microbatches, and what the loss over one of them means for the whole.

mod join;
mod loss;
mod microbatches;
mod pre_cut;

pub(crate) use loss::loss_seed;
pub use loss::{LOSS_SEED, Loss, LossPart, Reduction, Weight};
pub use microbatches::{Batch, MicrobatchError, Microbatches, Split};
