//! Shared parameters: one parameter of the model that several stages hold a copy of.
//!
//! Guarantees: copies start bit-equal and stay so, since every copy is stepped with the same sum of gradients. The
//! gradient norm counts a parameter once, wherever its copies live. What would let copies diverge is refused before
//! anything runs, or after the first step if only the optimizer shows it.
//!
//! 1. *Declared once* ([`SharedParameter`]): a name, and the paths at which modules hold the parameter. Every rank
//!    knows all declarations.
//! 2. *Agreed* ([`agree`], [`find`]): at the start all ranks exchange what they hold, each finds the same groups, and
//!    all form them in the same order. A group is a set of ranks, with all parameters that exactly these ranks
//!    hold: they are reduced together.
//! 3. *Equal start* ([`Sharing::copy_first`]): every copy takes the value of the first stage's.
//! 4. *Summed* ([`Sharing::sum_gradients`]): after the last backward a rank adds up its own copies' gradients in model
//!    order, each group reduces once, and every copy gets the sum. In bidirectional placements each replica of the
//!    model is a group of its own, after the replicas of a stage have been summed. The sum has other parentheses with
//!    another cut: a stage's graph adds up the parts of its own layers in every microbatch, and copies are added once,
//!    after all microbatches. So two cuts agree up to rounding there, and to the bit in all that is not shared (before
//!    the first step that read a shared value).
//! 5. *Stepped alike* ([`Sharing::name_copies`]): groups of optimizers and learning rates match the first copy's name.
//! 6. *Compared* ([`diverged`]): after the first step the copies are compared, bit for bit.
//!
//! Behaviour follows Megatron-Core's `finalize_model_grads` and the layers built on it.

mod agree;
mod declare;
mod diverged;
mod find;
mod held;
mod report;
mod sharing;
mod sum;

pub use declare::SharedParameter;
pub use report::{SharedCopy, SharedReport};
pub(crate) use sharing::Sharing;
