//! A command to all ranks, with the type of its reply.

use crate::execute::ExecuteError;
use crate::train::step::Rank;
use std::time::Instant;

/// What processes compare before they run a command together.
pub(crate) enum Call {
    /// Every process runs it on its own, because its reply cannot leave the process.
    Local,
    /// All processes must make this call; the text has everything that must be equal.
    Shared(String),
    /// This process refused the call for this reason, so no process may run it.
    Refused(String),
}

/// The work of every rank for one call of the user. All ranks get the same commands in the same order.
pub(crate) trait Command: Send + Sync + 'static {
    type Reply: Send + 'static;

    /// What a rank does while it runs the command, for errors: "stepping the weights".
    const NAME: &'static str;

    /// True if it adds to the accumulated gradients or uses them. A failure then drops them on all ranks.
    const GATHERS: bool = false;

    /// True if it runs on the weights, so that all ranks must hold those of one step. It is refused after a failure
    /// that left some ranks with weights from before a step and others from after it.
    const RUNS_ON_WEIGHTS: bool = false;

    /// What processes compare before they run it; by default only the name.
    fn call(&self) -> Call {
        Call::Shared(Self::NAME.to_owned())
    }

    /// The training step that it belongs to, counted from 1.
    fn step(&self) -> Option<u64> {
        None
    }

    /// One rank's part. `began` is when all ranks began; timelines count from it.
    fn run(&self, rank: &mut Rank, began: Instant) -> Result<Self::Reply, ExecuteError>;

    /// When ranks are processes: returns the replies of all ranks, given this one's own. All ranks call it together. By
    /// default it returns only its own reply, which is either the same on every rank or concerns only this process.
    fn exchange(&self, _: &mut Rank, own: Self::Reply) -> Result<Vec<Self::Reply>, ExecuteError> {
        Ok(vec![own])
    }
}
