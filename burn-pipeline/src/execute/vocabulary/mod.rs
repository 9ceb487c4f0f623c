//! A rank's pieces of a spread vocabulary: `S`, `T`, `IF`, `IB`, and the collectives between them; see
//! [`vocabulary`](crate::vocabulary).
//!
//! Guarantees: a collective waits nowhere but where what it gives is used; sums over ranks have the order of ranks.
//!
//! 1. *Start*: at its cell, a collective sends what this rank gives: to all that get it, and straight, so that no rank has to pass
//!    anything on. What the rank gives to itself stays in its inbox.
//! 2. *Use*: the first task that needs the collective receives what the others gave. `REDUCE_S` is joined once, by `T` or by the last
//!    stage's backward, whichever comes first; in evaluation after the row.
//! 3. *Order*: messages of the plan and of collectives between two ranks come in the order of the sender's row. So a rank posts all that
//!    others will send it before it begins ([`Executor::announce`]): what comes before the awaited message was sent before it, and
//!    stays in the inbox. No wait is added to those that `check` has proved.
//! 4. Without a target (an evaluation for outputs alone) the head and its collectives do nothing.
//!
//! Reading order: [`state`] (what a row holds), [`collectives`], [`head`] (`S` and `T`), [`embedding`] (`IF` and `IB`), [`read`] (tensors out of payloads).

mod collectives;
mod embedding;
mod head;
mod read;
mod state;

pub(super) use state::VocabularyState;
