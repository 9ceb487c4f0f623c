//! The ranks that hold a stage together: tensor parallelism.
//!
//! Guarantees: every rank of a group gets bit-equal results of a collective; the numbers of a model are one device's up to the
//! rounding of sums that are added in parts, and the same bits under every schedule; ranks of a group that come to different
//! collectives, or whose losses differ, end the step with an error that names them; a rank that fails, leaves or stalls ends
//! all others' waits within the timeout.
//!
//! 1. *Layout*: a job has `pipeline ranks x replicas x members` ranks (`group/grid.rs`). The members of a group run one
//!    row of the plan, each with its piece of every cut weight. What crosses a boundary each sends to the member with its own place:
//!    whole, or its piece of it ([`Cut`], `boundary`). Pipeline ranks may have groups of different sizes; what crosses between them is
//!    re-cut on the way (`execute/recut`).
//! 2. *Collectives* (`collective`) exchange tensors between members inside of a stage's task; `pairs` gives each its backward
//!    ([`TensorGroup`]). They run beneath autodiff, and a capture records them as operations of the program.
//!    Where the link has collectives of its own (NCCL), those are used (`by_link`).
//! 3. *Messages* (`exchange`) travel over the rank's own end of the link, and say which task and collective they are of. Between two
//!    members there are no others, so they cannot be mistaken for a plan's transfers.
//! 4. *Order*: since members run one row, a circle of waits over members would be one of the plan, or one inside of a task. The plan's is excluded by
//!    `check`, and that of a captured stage's tasks by the same proof, once the members have told each other what they recorded (`compare`).
//!    Collectives of a backward belong to `I` ([`CapturedOp::is_collective`](crate::program::CapturedOp::is_collective)). In a captured
//!    program each is a start and a wait, with computation between them (`program/overlap.rs`); all members start them in one order, and each
//!    awaits them in that order.
//! 5. *Cut weights* (`cut`): a layer cuts the ordinary layer's values, those of member 0, and notes which parameter it cut along which
//!    axis. All other parameters are copies: members start with member 0's, and each adds the same gradients to them, which is compared in
//!    the first step. Checkpoints hold the whole parameters and their optimizer's state (`optimizer_states`).
//! 6. *Replicas*: the data-parallel replicas of a stage are a group too, for layers that send tokens to weights (experts). Their tensors
//!    are not whole: each has its own microbatch, and an all-to-all (`pairs`, `rows`) takes a part of it to the replica that has the
//!    weights. Weights cut over replicas get the gradients of all replicas' tokens that way, so they are neither summed nor copied among
//!    replicas as others are. A parameter may be cut among members and then among replicas (`holders`).
//!
//! This is the tensor parallelism of Megatron-LM (Shoeybi et al., 2019; arXiv:1909.08053). Its layers are in
//! [`nn`](crate::nn).

mod boundary;
mod by_link;
mod collective;
mod compare;
mod cut;
mod exchange;
mod group;
mod holders;
mod optimizer_states;
mod pairs;
mod rows;
#[cfg(all(test, feature = "flex"))]
mod tests;

pub use boundary::Cut;
pub use group::TensorGroup;
pub(crate) use holders::Holders;
