//! Data-parallel replicas of a pipeline: what they exchange, and when.
//!
//! Guarantees: losses, gradients and weights are those of one pipeline over the whole batch (the loss contract
//! covers all replicas), and bitwise equal on all replicas; replicas cannot wait for each other in a cycle; an
//! error of one replica ends all of them and names its rank.
//!
//! 1. *Layout* ([`Grid`](crate::ranks)): a job has `pipeline ranks x replicas` ranks, and rank `p * replicas + r` is
//!    pipeline rank `p` of replica `r`. So the replicas of a stage, which exchange the most bytes, have adjacent
//!    ranks, on one machine if ranks are numbered machine by machine. They are a [`RankSet`](crate::ranks).
//! 2. *Batch*: it is cut once, into the microbatches of all replicas. Each replica runs a contiguous share of them;
//!    if the number does not divide evenly, earlier replicas run one more. Seeds, weights and random draws of a
//!    microbatch, and the position of its loss, depend only on its index in the whole batch. So a gradient is a sum
//!    over microbatches, whichever replica ran them, and is scaled once at the end, as without replicas.
//! 3. *Reduction* (`reduction.rs`): `REDUCE_GRAD` starts a reduce-scatter of pieces of the stage's gradients
//!    (`pieces.rs`), and the row continues. Messages are received between actions, and the all-gather follows as
//!    pieces arrive. Missing messages are awaited at the end of the row.
//!    Over a link that cannot probe, everything but the first sends happens at the end.
//! 4. *Sharded parameters* (`sharding.rs`) stop after the first half: each replica keeps its piece of every
//!    parameter, and steps it with its piece of the gradient. `UNSHARD` sends this replica's piece to all others,
//!    and the stage's next task waits for theirs. `RESHARD` drops all but this replica's piece.
//! 5. *Order of waits*: `execute/README.md` says why replicas that run the same plan cannot wait in a cycle. If their
//!    plans differ in length (a batch that does not divide), gradients are reduced after the row and parameters
//!    gathered before it.
//! 6. *Accumulation*: a sum over several batches (`Pipeline::accumulate`) is reduced with the last batch; gradients
//!    of sharded parameters are reduced with each. With ordered accumulation the sum passes from replica to replica
//!    instead, and each adds its microbatches, so additions have the order of one device. If parameters are
//!    sharded, replica 0 gets the whole sum of earlier batches before each batch, and all replicas get their pieces
//!    of the new sum after it.
//! 7. *Weights cut over replicas* (by a layer, see [`tensor_parallel`](crate::tensor_parallel)) take no part in this:
//!    the rank with a piece has its whole gradient. Stages exchange tensors inside their tasks, over the same inbox,
//!    since sums may come first.
//! 8. Each stage may be sharded or not. Copies of a shared parameter are cut alike, so each replica sums its pieces
//!    of them as it would sum whole copies. Either all copies of a parameter are sharded or none.
//!
//! This is ZeRO stage 3 (Rajbhandari et al., 2020) as in PyTorch's FSDP, whose second version also cuts each
//! parameter by itself. The times of gathers follow PyTorch's `_add_unshard_reshard`.

mod optimizer_states;
mod parameters;
mod pieces;
mod reduction;
mod replica_group;
mod sharding;

pub(crate) use parameters::Values;
pub(crate) use replica_group::{ReplicaGroup, Stages};
