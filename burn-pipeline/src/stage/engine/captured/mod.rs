//! The split way to run a stage: captured once per form of its inputs, replayed as `F`, `I` and `W`.
//!
//! Guarantees: the same numbers as the plain way, bit for bit where the backend gives the same operation the same
//! numbers twice. `I` computes the gradients of the input and no more; `W` the rest. A stage that cannot be
//! captured runs the plain way, with the reason kept for [`Engine::report`] (or fails, where that was asked for).
//!
//! 1. A forward looks its [`Signature`] up: shapes, element types and specs of what arrives, and parameters.
//! 2. A new one is captured (see [`record`](record::record)): nothing of the user's code runs again for it.
//! 3. The forward program runs in an interpreter of its own for the microbatch, fed with the module's present
//!    parameters; what `I` and `W` need stays in it.
//! 4. `I` is fed the received gradients and hands the input's on; `W` empties the interpreter; `B` does both in
//!    the order of autodiff. Where outputs have no gradient, since nothing downstream used them, other programs run that
//!    have no part for them; see `partial`.
//!
//! 5. Parameters are inputs of the programs: between two of them, a microbatch can let go of those that it was fed
//!    ([`Engine::unload_weights`]), and is fed the module's present ones before the next. That is how sharded
//!    parameters are freed between a stage's forward and its backward. A view of one that the next program reads keeps
//!    its storage, and pins it.
//!
//! What is refused, and run the plain way: a forward that reads values (`into_scalar`, control flow on them), that
//! changes buffers (batch norm's running statistics), that uses tensors it does not get as input, extra, target or
//! parameter, or an operation that Burn's capture does not know. A refused capture ends in a panic that is
//! caught; the process's panic hook may print it, unless the stage says beforehand that it cannot be captured
//! ([`Stage::skip_capture`]): then none is tried. Effects of a forward outside tensors (counters, files) happen
//! once a capture and not in a replay: such stages are to be run with
//! [`SplitBackward::Eager`](super::SplitBackward::Eager).

mod engine;
mod merged;
mod microbatch_run;
mod output_spec;
mod parameters;
mod partial;
mod record;
mod run;
mod running_program;
mod signature;
mod tensors;

pub(in crate::stage) use engine::Captured;
