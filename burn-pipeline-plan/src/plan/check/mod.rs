//! Proof that a plan can be run: [`Plan::check`] gives a [`CheckedPlan`], or says precisely why not.
//!
//! Guarantees, for a declared [`Transport`], of every checked plan:
//!
//! - every stage does every microbatch of its route exactly once: `F`, then `B` or `I` and later `W` (or `F`
//!   alone everywhere: a forward-only plan), each on the rank that holds the stage;
//! - if the plan is lowered, each value that crosses ranks is sent once after it is made and received once
//!   before it is used, nothing else is sent, and both ends of a channel (an ordered pair of ranks) agree on the
//!   order;
//! - values that go past a neighbour ([`SkipEdge`](crate::plan::SkipEdge)) are held to the same rules;
//! - each wait comes once, after the one start that it is for and before anything that uses what it waits for;
//! - if stages are unsharded at all, each is unsharded whenever it computes; if gradients are reduced at all,
//!   each stage's are, once, after its last weight gradient;
//! - it cannot deadlock: run under that transport, or any laxer one, every rank reaches the end of its row;
//! - activations and received buffers stay under the caps given.
//!
//! An unlowered plan is checked as if every value appeared where it is needed as soon as it is made.
//!
//! Time and memory are linear in the plan, with dense tables and no hashing:
//!
//! 1. `once`: one scan over each row, with one byte for each pair of stage and microbatch. All rules that one
//!    rank can see for itself are decided here, since a rank runs its row in order.
//! 2. `channels`: the sends of a channel, in order, against its receives.
//! 3. `deadlock`: ranks are run against each other, transfers alone (or, unlowered, dependencies alone);
//!    whatever is left standing holds a cycle.
//!
//! The rules are those of PyTorch's `_validate_schedule` and of its unit-step dry run, made strict: see the tests
//! for a table of what it accepts and this refuses.

mod channels;
mod deadlock;
mod error;
mod once;

pub use error::{CheckError, Excerpt, Waiting};

use super::Plan;
use super::edges::Edges;

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

/// A plan that has passed [`Plan::check`], which is the only way to make one.
#[derive(Clone, PartialEq, Debug)]
pub struct CheckedPlan {
    plan: Plan,
    transport: Transport,
}

impl CheckedPlan {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The plan, no longer checked: it may be rewritten.
    pub fn into_plan(self) -> Plan {
        self.plan
    }

    /// The transport that it was checked for. It runs under any laxer one as well.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Can it be run as it stands: is every value that crosses ranks sent and received in writing?
    pub fn is_runnable(&self) -> bool {
        let skips = Edges::new(&self.plan).skips().iter().any(|skip| skip.crosses);
        let crosses = skips || self.plan.placement().all_stages().any(|s| self.plan.placement().crosses_after(s));
        self.plan.is_lowered() || !crosses
    }
}

impl Plan {
    /// Proves that the plan can be run, or refuses it. See the [module](crate::plan::check) for what is proved.
    ///
    /// # Errors
    /// A [`CheckError`] that names rank, step and action, and what is wrong with them. Rows are scanned in rank
    /// order, so of several faults the one on the lowest rank is named; faults that need two ranks to see
    /// (order on a channel, deadlock) come after all others.
    ///
    /// ```
    /// use burn_pipeline_plan::plan::{CheckOptions, Plan};
    /// let plan = Plan::from_csv("mine", "0F0,0B0\n1F0,1B0\n")?;
    /// assert!(plan.check(&CheckOptions::default()).is_ok());
    /// let error = Plan::from_csv("mine", "0F0,0B0\n1B0,1F0\n")?.check(&CheckOptions::default()).unwrap_err();
    /// assert!(error.to_string().starts_with("rank 1, step 0: 1B0 needs 1F0 earlier in the row"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check(self, options: &CheckOptions) -> Result<CheckedPlan, Box<CheckError>> {
        let edges = Edges::new(&self);
        once::refuse_short(&self, &edges)?;
        let transfers = once::scan(&self, &edges, options)?;
        if self.is_lowered() {
            let order = channels::refuse_disorder(&self, &transfers)?;
            deadlock::refuse_lowered(&self, &transfers, &order, options.transport)?;
        } else {
            deadlock::refuse_unlowered(&self, &edges)?;
        }
        Ok(CheckedPlan { plan: self, transport: options.transport })
    }
}
