//! How a simulation treats the transfers of a lowered plan.

use crate::plan::Transport;

/// How the transfers of a lowered plan behave. In an unlowered plan, values cross by themselves and these options
/// have no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimulateOptions {
    /// What a message waits for before it starts.
    pub transport: Transport,
    /// If true, transfers and collectives run beside computations; if false, they block their ranks. A transfer or
    /// collective with a wait always runs beside the actions before the wait.
    ///
    /// The option changes times only: a plan that deadlocks with blocking sends and receives is always refused.
    pub overlap: bool,
}

impl Default for SimulateOptions {
    /// Rendezvous with overlap. If transfers take no time, a lowered plan takes as long as the unlowered one.
    fn default() -> Self {
        Self { transport: Transport::Rendezvous, overlap: true }
    }
}
