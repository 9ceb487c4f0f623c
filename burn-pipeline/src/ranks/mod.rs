//! Sets of ranks: how the ranks of a job are numbered, and what the ranks of a set exchange.
//!
//! Guarantees: every member of a set gets the same bits from a sum, since lists are added in the order of the
//! members; sets that overlap cannot wait for each other in a cycle (`README.md` in this folder has the argument);
//! every wait ends at the set's timeout, or at once if another rank fails.
//!
//! Reading order:
//!
//! 1. `grid.rs`, `sizes.rs`: how ranks are numbered by pipeline rank, data-parallel replica and member of a
//!    tensor-parallel group.
//! 2. `set.rs`: [`RankSet`], the ranks of one set, this rank's place, its end of the link, and the timeout.
//! 3. `inbox.rs`: messages that arrive before they are needed.
//! 4. `list.rs`: lists of tensors as one message.
//! 5. `lists.rs`: what a set exchanges as lists. Each collective has a start, which sends and does not wait, and an
//!    end, which receives. Collectives on single tensors, inside of a stage, are in
//!    [`tensor_parallel`](crate::tensor_parallel).
//!
//! Tensor-parallel groups, data-parallel replicas, the ranks of vocabulary shards and the copies of tied parameters
//! are sets. Their rooms say what they exchange, and when.

mod grid;
mod inbox;
mod list;
mod lists;
mod set;
mod sizes;

pub(crate) use grid::Grid;
pub(crate) use inbox::{Inbox, poll_deadline};
pub(crate) use list::{TensorList, sum};
#[cfg(fuzzing)]
pub use lists::sum_over_ranks;
pub(crate) use set::RankSet;
pub use sizes::GroupSizes;
