//! What a plan is checked for: the transport, and caps on what a rank holds.

/// How a link between two ranks behaves; each is laxer than the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Transport {
    /// A send ends when its receive is posted, and the other way round: one joint event. The strictest. One that is
    /// awaited in a cell of its own ends there, and is posted where it starts.
    #[default]
    Rendezvous,
    /// A channel holds this many payloads: send number `j` waits for receive number `j - K`. With 0 it is a
    /// rendezvous.
    Buffered(usize),
    /// Sends never wait.
    Unbounded,
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Transport::Rendezvous => f.write_str("rendezvous"),
            Transport::Buffered(payloads) => write!(f, "buffered={payloads}"),
            Transport::Unbounded => f.write_str("unbounded"),
        }
    }
}

/// What a plan is checked for, besides being complete and in order.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct CheckOptions {
    /// The transport under which nothing may deadlock. Unlowered plans have none: their values travel by magic.
    pub transport: Transport,
    /// The most activations that a rank may hold, in rank-microbatches as the simulator counts them: of a model of
    /// S stages on p ranks, a forward of one stage adds p/S, its `W` or `B` takes it away. (A rank of a
    /// bidirectional placement holds a stage of each replica, and each counts as a whole.) Forward-only plans
    /// hold none.
    pub activation_cap: Option<f64>,
    /// The most payloads that a rank may have received and not used yet. Only a lowered plan can be checked for it.
    pub received_cap: Option<usize>,
    /// The most payloads that a rank may have sent whose `WAIT_SEND_...` is still to come: they cannot be let go of.
    /// A send without a wait of its own is over when its cell is, and does not count.
    pub sent_cap: Option<usize>,
}
