//! The options of the check: the transport, and caps on what a rank holds.

use derive_more::Display;

/// When a send ends. Each variant is laxer than the one before: a plan that cannot deadlock under one cannot
/// deadlock under the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Display, Default, Hash)]
pub enum Transport {
    /// A send ends when its receive is posted, and a receive when its send is: one joint event. The strictest. A
    /// transfer with its own wait is posted at its start and ends at its wait.
    #[default]
    #[display("rendezvous")]
    Rendezvous,
    /// A channel holds `K` payloads: send number `j` waits for receive number `j - K`. `Buffered(0)` is a rendezvous.
    #[display("buffered={_0}")]
    Buffered(usize),
    /// Sends never wait.
    #[display("unbounded")]
    Unbounded,
}

/// What a plan is checked for, besides completeness and order.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct CheckOptions {
    /// The transport under which the plan must not deadlock. Ignored for unlowered plans, which have no transfers.
    pub transport: Transport,
    /// The most activations that a rank may hold, in rank-microbatches, as the simulator counts them: with S stages
    /// per route on p ranks, a forward adds p/S, and its `W` or `B` removes it. Plans for evaluation hold none.
    pub activation_cap: Option<f64>,
    /// The most received payloads that a rank may hold unused. Lowered plans only.
    pub received_cap: Option<usize>,
    /// The most sent payloads that a rank may hold until their `WAIT_SEND_...`. A send without its own wait ends with
    /// its cell and does not count.
    pub sent_cap: Option<usize>,
}
