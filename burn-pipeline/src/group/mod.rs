//! Data-parallel replicas of a pipeline: where their ranks are, and what they tell each other.
//!
//! Guarantees: losses, gradients and weights are those of one pipeline over the whole batch (the loss contract holds over
//! both), and bit-equal on all replicas; replicas cannot wait for each other in a circle; an error of one of them ends all,
//! with its rank.
//!
//! 1. *Layout* ([`Grid`]): a job has `pipeline ranks x replicas` ranks, and rank `p * replicas + r` is pipeline rank `p` of
//!    replica `r`. So the replicas of a stage, which exchange the most bytes, are neighbours, on one machine where
//!    ranks are numbered machine by machine (Megatron-Core's order `tp-cp-ep-dp-pp`).
//! 2. *Batch*: it is cut once, into the microbatches of all replicas; each runs a contiguous part of them, earlier
//!    replicas one more where it is not even. Losses go to every rank by their place in the whole batch, and a microbatch
//!    is seeded, weighed and drawn for by that place. So a gradient is a sum over microbatches, whoever ran them, and
//!    is scaled once, in the end, as without replicas.
//! 3. *Reduction* (`reduction.rs`): at `REDUCE_GRAD` a rank flattens the stage's gradients, cuts them into one piece a
//!    replica (`pieces.rs`), coalesced into one buffer an element type, and sends each replica its piece. Sends do not
//!    wait, so that the row goes on. Between the actions of the row, and while it waits for a message of the plan, what has
//!    come is taken up (`mail.rs`): once all pieces are here, they are added up in the order of replicas, and the
//!    sum goes to the others: a reduce-scatter, then an all-gather, beside the row's cool-down. What is left when the
//!    row is done is waited for then. On a link that cannot tell what has come, that is all but the first sends.
//! 4. *Sharded parameters* (`shard.rs`) stop after the first half: each replica keeps its piece of every parameter, and
//!    steps it with its piece of the gradient. `UNSHARD` sends the own piece to all others, and the stage's next task
//!    waits for theirs; `RESHARD` lets go of all but the own one.
//! 5. *Order*: replicas that run the same plan start the same exchanges in the same order, and each message is awaited
//!    in that order. Nothing that is awaited inside a row was posted later than where the other replica's row is: a
//!    circle of waits over replicas would be one within the plan, which `check` has excluded. Where replicas run plans
//!    of other lengths (a batch that is not even), gradients are reduced after the row, and parameters gathered before
//!    it.
//! 6. A sum over several batches (`Pipeline::accumulate`) is reduced with the last of them; sharded ones with each. With
//!    ordered accumulation, the sum is handed from replica to replica instead, each adding its microbatches, so that
//!    the order of additions is that of one device. Where parameters are sharded, the first replica gets the whole sum of
//!    earlier batches back before each batch, and all get their pieces of the new one after it.
//! 7. Stages may be sharded or not, each for itself. Copies of a shared parameter are cut alike, so that each replica sums
//!    its pieces of them as it would sum whole ones; of one parameter, all copies are sharded or none.
//!
//! What follows whom: ZeRO stage 3 (Rajbhandari et al., 2020) by way of PyTorch's FSDP, whose second version cuts each
//! parameter by itself, as is done here; when to gather is PyTorch's `_add_unshard_reshard`.

pub(crate) mod exchange;
mod grid;
mod mail;
pub(crate) mod pieces;
mod reduction;
pub(crate) mod shard;
mod states;

pub(crate) use exchange::Group;
pub use grid::Grid;
pub(crate) use mail::poll_deadline;
