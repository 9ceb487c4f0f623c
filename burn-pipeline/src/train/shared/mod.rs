//! Tied parameters: one parameter of the model of which several stages hold a copy.
//!
//! Guarantees: copies start bitwise equal and stay so, because every copy is stepped with the same sum of gradients.
//! The gradient norm counts a parameter once, wherever its copies are. Anything that would let copies diverge is
//! refused before anything runs, or after the first step if only the optimizer shows it; and after a module was
//! replaced, before the next batch or checkpoint.
//!
//! 1. *Declared once* ([`SharedParameter`]): a name, and the paths at which modules hold the parameter. Every rank
//!    knows all declarations.
//! 2. *Agreed* ([`agree`], [`find`]): at the start all ranks exchange what they hold, each finds the same groups, and
//!    all create them in the same order. A group is a set of ranks, with all parameters that exactly these ranks hold;
//!    they are reduced together.
//! 3. *Equal start* ([`Sharing::copy_first`]): every copy takes the value of the first stage's.
//! 4. *Summed* ([`Sharing::sum_gradients`]): after the last backward a rank adds its own copies' gradients in model
//!    order, each group reduces once, and every copy gets the sum. In bidirectional placements each route of the model
//!    is a group of its own; the two copies of each stage are added afterwards. Another cut associates the sum
//!    differently: a stage's graph adds the parts of its own layers in every microbatch, and copies are added once,
//!    after all microbatches. So two cuts agree up to rounding in tied parameters, and bitwise in all others (until the
//!    first step that read a tied value).
//! 5. *Stepped alike* ([`Sharing::name_copies`]): groups of optimizers and learning rates match the first copy's name.
//! 6. *Compared* ([`diverged`]): after the first step, and after a module was replaced, copies are compared bit for
//!    bit.
//!
//! Behaviour follows Megatron-Core's `finalize_model_grads` and the layers built on it.

mod agree;
mod declare;
mod diverged;
mod find;
mod report;
mod sharing;
mod sum;

pub use declare::SharedParameter;
pub use report::{SharedCopy, SharedReport};
pub(crate) use sharing::Sharing;
