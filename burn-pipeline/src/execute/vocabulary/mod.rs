//! A rank's shards of a vocabulary-parallel embedding and head: `S`, `T`, `IF`, `IB`, and the collectives between
//! them; see [`vocabulary`](crate::vocabulary).
//!
//! Guarantees: a collective waits only where its result is used; sums over ranks are added in rank order.
//!
//! 1. *Start*: at its cell, a collective sends this rank's message directly to all ranks that need it, so no rank
//!    has to forward it. A rank's message to itself stays in its inbox.
//! 2. *Use*: the first task that needs the collective receives the others' messages. `REDUCE_S` is joined once, by
//!    `T` or by the last stage's backward, whichever comes first; in evaluation after the row.
//! 3. *Order*: messages of the plan and of collectives between two ranks have the order of the sender's row. So
//!    before a row, a rank posts all messages that others will send to it ([`Executor::announce`]): messages before
//!    the awaited one were sent earlier, and stay in the inbox. This adds no wait to those that `check` has proved.
//! 4. Without a target (an evaluation for outputs alone) the head and its collectives do nothing.
//!
//! Reading order: [`VocabularyState`](super::run_state::VocabularyState) (what a row holds), [`collectives`], [`head`]
//! (`S` and `T`), [`embedding`] (`IF` and `IB`), [`read`] (reading tensors from payloads).

mod collectives;
mod embedding;
mod head;
mod read;
