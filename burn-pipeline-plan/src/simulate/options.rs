//! How a simulation treats the transfers of a lowered plan.

use crate::plan::Transport;

/// How the transfers of a lowered plan behave. In an unlowered plan values cross by themselves, and neither option matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimulateOptions {
    /// What a message waits for before it starts.
    pub transport: Transport,
    /// If true, transfers and collectives run beside computations; if false, they keep their ranks from computing.
    /// A transfer or collective with a wait of its own runs beside what stands before the wait in either case.
    ///
    /// The option changes times, not what is legal: a plan that deadlocks with blocking sends and receives is refused
    /// either way.
    pub overlap: bool,
}

impl Default for SimulateOptions {
    /// Rendezvous with overlap: if transfers take no time, a lowered plan then takes as long as the unlowered one.
    fn default() -> Self {
        Self { transport: Transport::Rendezvous, overlap: true }
    }
}
