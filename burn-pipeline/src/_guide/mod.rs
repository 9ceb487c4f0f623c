//! The guide: what a user of the crate does, a chapter a question.
//!
//! | chapter | question |
//! |---|---|
//! | [`cut_a_model`] | How does a Burn model become stages? |
//! | [`pick_a_schedule`] | Which schedule, and how is it found without trying all of them? |
//! | [`numbers`] | What is the loss, and when are numbers equal to the last bit? |
//! | [`real_models`] | Tied weights, skip connections, encoders and decoders, sequences of several lengths, dropout, batch norm, little memory, evaluation, generation |
//! | [`devices`] | Which devices work, and what is refused? |
//! | [`many_machines`] | Ranks as processes, replicas, sharded parameters |
//! | [`tensor_parallel`] | A stage that several ranks hold together |
//! | [`vocabulary`] | A large vocabulary that every rank has a piece of |
//! | [`experts`] | Mixtures of experts |
//! | [`burns_training_loop`] | Burn's `Learner`, its metrics and its dashboard over a pipeline |
//! | [`checkpoints`] | Saving, going on, pretrained weights |
//! | [`extend`] | A schedule, a transport, an operation of your own |
//! | [`trouble`] | What an error or a slow step means |
//!
//! It uses the field's words. A *rank* is a worker: a thread or process with its device. A *stage* is a contiguous part of the
//! model, the unit that a schedule moves; a rank holds one or several (*chunks*). A batch is cut into *microbatches*; a *sample* is one
//! row of the batch. The operations of a plan are written as PyTorch writes them: `F` (forward), `I` (backward for the
//! input), `W` (backward for the weights), `B` (both).

#[doc = include_str!("cut_a_model.md")]
pub mod cut_a_model {}

#[doc = include_str!("pick_a_schedule.md")]
pub mod pick_a_schedule {}

#[doc = include_str!("numbers.md")]
pub mod numbers {}

#[doc = include_str!("real_models.md")]
pub mod real_models {}

#[doc = include_str!("devices.md")]
pub mod devices {}

#[doc = include_str!("many_machines.md")]
pub mod many_machines {}

#[doc = include_str!("tensor_parallel.md")]
pub mod tensor_parallel {}

#[doc = include_str!("vocabulary.md")]
pub mod vocabulary {}

#[doc = include_str!("experts.md")]
pub mod experts {}

#[doc = include_str!("burns_training_loop.md")]
pub mod burns_training_loop {}

#[doc = include_str!("checkpoints.md")]
pub mod checkpoints {}

#[doc = include_str!("extend.md")]
pub mod extend {}

#[doc = include_str!("trouble.md")]
pub mod trouble {}
