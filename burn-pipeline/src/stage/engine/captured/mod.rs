//! The engine that splits a stage's backward: captured as programs, replayed as `F`, `I` and `W`.
//!
//! Guarantees: the results equal Burn's autodiff, bit for bit if the backend gives the same operation the same
//! numbers twice. `I` computes the gradients of the input and nothing else; `W` computes the rest.
//!
//! 1. Each forward of a microbatch is recorded: the user's code runs once, on placeholders, and computes nothing
//!    (module `recording`). So whatever it reads from the host, counts, or draws from a generator of its own is what
//!    the plain loop would read, count and draw. If the user says that stages read nothing that changes
//!    (`Tuning::record_every`), forwards of one signature take turns: one is recorded and compared, the others run
//!    the same programs.
//! 2. If an equal recording is known, its programs are replayed. Recordings are equal if their signature, operations,
//!    scalars, constants and edges are, including the backward's. Otherwise programs are made from the new recording,
//!    and kept ([`programs`], [`replayable`]).
//! 3. The forward program runs in the microbatch's own interpreter, fed with the module's current parameters
//!    ([`microbatch_run`]). What `I` and `W` need stays in the interpreter. Backwards and recomputed forwards run the
//!    microbatch's programs, and none of the user's code.
//! 4. `I` is fed the received gradients and returns the input's. `W` empties the interpreter. `B` does both, in
//!    autodiff's order ([`run`]). If outputs have no gradient, the backward has programs of its own ([`partial`]);
//!    several `W`s can run as one ([`merged`]).
//! 5. Parameters are inputs of the programs. Between two programs a microbatch can release the parameters that it was
//!    fed (`unload_weights`), and is fed the module's current ones before the next program. So sharded parameters are
//!    freed between a stage's forward and its backward. A view of a parameter that the next program reads keeps its
//!    storage, and pins it.
//! 6. With a seed, a microbatch's random numbers are drawn on the host by its own generator, whatever other threads
//!    draw. A forward with unrecorded draws is refused ([`elsewhere`]).
//!
//! [`SplitBackward`](crate::stage::SplitBackward) says which stages cannot be captured and what happens to them.

mod elsewhere;
mod engine;
mod merged;
mod microbatch_run;
mod partial;
mod programs;
mod replayable;
mod run;

pub(in crate::stage) use engine::Captured;
