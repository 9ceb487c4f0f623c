//! A command to all ranks, with the type of its reply.

use crate::execute::ExecuteError;
use crate::train::step::Rank;
use std::time::Instant;

/// What processes compare before they run a command together.
pub(crate) enum Call {
    /// Every process runs it for itself: its reply cannot leave the process.
    Local,
    /// All processes must make this call; the text holds all that must be equal.
    Shared(String),
    /// This process refused a call, for this reason, so that no process may run it.
    Refused(String),
}

/// What every rank runs for one call of the user. All ranks get the same commands in the same order.
pub(crate) trait Command: Send + Sync + 'static {
    /// What one rank replies.
    type Reply: Send + 'static;

    /// What ranks that run it are doing, for errors: "stepping the weights".
    const NAME: &'static str;

    /// Does it add to what is gathered since the last step, or use it up? A failure then drops all of that, on all ranks.
    const GATHERS: bool = false;

    /// Does it run on the weights, so that ranks must hold those of one step? After a failure that left some ranks with weights from
    /// before a step and others with those from after it, it is refused.
    const RUNS_ON_WEIGHTS: bool = false;

    /// What processes compare before they run it; the name alone by default.
    fn call(&self) -> Call {
        Call::Shared(Self::NAME.to_owned())
    }

    /// The training step that it is part of, counted from 1.
    fn step(&self) -> Option<u64> {
        None
    }

    /// One rank's part. `began` is when all ranks began: timelines count from it.
    fn run(&self, rank: &mut Rank, began: Instant) -> Result<Self::Reply, ExecuteError>;

    /// Where ranks are processes: the replies of all ranks, from this one's own. All ranks call it together. By default
    /// the reply is the same on every rank already, or is about this process alone.
    fn exchange(&self, _: &mut Rank, own: Self::Reply) -> Result<Vec<Self::Reply>, ExecuteError> {
        Ok(vec![own])
    }
}
