//! The engine that splits a stage's backward: captured once for each shape of its inputs, replayed as `F`, `I` and `W`.
//!
//! Guarantees: the numbers of Burn's autodiff, bit for bit where the backend gives the same operation the same numbers
//! twice. `I` computes the gradients of the input and no more; `W` computes the rest.
//!
//! 1. A forward looks up the signature of its call: shapes, element types and tags of input, extra, target and
//!    parameters ([`signature`]).
//! 2. The first call of a signature is captured ([`record`], [`parameters`], [`tensors`]). Later ones run none of the
//!    user's code.
//! 3. The forward program runs in an interpreter of the microbatch's own, fed with the module's present parameters
//!    ([`microbatch_run`], [`running_program`]). What `I` and `W` need stays in the interpreter.
//! 4. `I` is fed the received gradients and returns the input's. `W` empties the interpreter. `B` does both, in
//!    autodiff's order ([`run`]). Outputs without a gradient have programs of their own ([`partial`]); several `W`s can
//!    run as one ([`merged`]).
//! 5. Parameters are inputs of the programs. Between two programs a microbatch can release those that it was fed
//!    (`unload_weights`) and is fed the module's present ones before the next: so sharded parameters are freed between a
//!    stage's forward and its backward. A view of a parameter that the next program reads keeps its storage, and pins it.
//!
//! [`SplitBackward`](crate::stage::SplitBackward) says which stages cannot be captured and what happens to them.

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
