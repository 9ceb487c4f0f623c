//! The guide for users of the crate. Each chapter answers one question.
//!
//! | chapter | question |
//! |---|---|
//! | [`cut_a_model`] | How does a Burn model become stages? |
//! | [`pick_a_schedule`] | Which schedule, and how is it found without trying all of them? |
//! | [`numbers`] | What is the loss, and when are numbers equal to the last bit? |
//! | [`half_precision`] | How does one train in bf16 or f16? |
//! | [`real_models`] | How are tied weights, skip connections, dropout, batch norm, generation and the like done? |
//! | [`devices`] | Which devices work, and what is refused? |
//! | [`many_machines`] | How do ranks run as processes, with replicas and sharded parameters? |
//! | [`tensor_parallel`] | How does a group of ranks hold a stage? |
//! | [`vocabulary`] | How does every rank hold a piece of a large vocabulary? |
//! | [`experts`] | How do mixtures of experts train? |
//! | [`burns_training_loop`] | How do Burn's `Learner`, its metrics and its dashboard run over a pipeline? |
//! | [`checkpoints`] | How is a job saved and resumed, and how are pretrained weights loaded? |
//! | [`fine_tune`] | How are adapters trained on a stored model, and stored alone? |
//! | [`extend`] | How does one add a schedule, a transport, an operation? |
//! | [`trouble`] | What does an error or a slow step mean? |
//! | [`words`] | What do the words mean? |

#[doc = include_str!("cut_a_model.md")]
pub mod cut_a_model {}

#[doc = include_str!("pick_a_schedule.md")]
pub mod pick_a_schedule {}

#[doc = include_str!("numbers.md")]
pub mod numbers {}

#[doc = include_str!("half_precision.md")]
#[doc = concat!("```\n", include_str!("half_precision.rs"), "```\n")]
#[doc = include_str!("half_precision_limits.md")]
pub mod half_precision {}

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

#[doc = include_str!("fine_tune.md")]
pub mod fine_tune {}

#[doc = include_str!("extend.md")]
pub mod extend {}

#[doc = include_str!("trouble.md")]
pub mod trouble {}

#[doc = include_str!("words.md")]
pub mod words {}
