//! Tensor parallelism: groups of ranks that run the same stages, each with a piece of every cut weight.
//!
//! Guarantees: every member of a group gets bitwise equal results of a collective. A model's results are one
//! device's, up to the rounding of sums that are added in parts, and the same bits under every schedule. Members
//! that run different collectives, or whose losses differ, end the step with an error that names them. A rank that
//! fails, leaves or stalls ends all others' waits within the timeout.
//!
//! 1. *Layout*: a job has `pipeline ranks x replicas x members` ranks (`ranks/grid.rs`). The members of a group run
//!    one row of the plan, each with its piece of every cut weight. At a boundary each sends the value to the
//!    member with its own index: whole, or its piece ([`Cut`], `boundary`). Pipeline ranks may have groups of
//!    different sizes; values between them are re-cut (`execute/recut`).
//! 2. *Collectives* (`collective`) exchange tensors between members inside of a stage's task; `pairs` gives each
//!    its backward ([`TensorGroup`]). They run beneath autodiff, and a capture records them as operations of the
//!    program. If the link has its own collectives (NCCL), those are used (`by_link`).
//! 3. *Messages* (`exchange`) travel over the rank's own end of the link, and name their task and collective. Two
//!    members send each other nothing else, so messages cannot be mistaken for a plan's transfers.
//! 4. *Order*: since members run one row, a cycle of waits over members would be a cycle in the plan, or one
//!    inside of a task. `check` excludes the first. For a captured stage's tasks the same proof excludes the
//!    second, once the members have told each other what they recorded (`compare`). Collectives of a backward
//!    belong to `I` ([`CapturedOp::is_collective`](crate::program::CapturedOp::is_collective)).
//! 5. *Cut weights* (`cut`): a layer cuts the ordinary layer's values, those of member 0, and records which
//!    parameter it cut along which axis; a low-rank adapter is cut with it (`adapter`). All other parameters are
//!    copies: members start with member 0's, and each adds the same gradients to them, which is checked in the first
//!    step. Checkpoints hold the whole parameters and their optimizer's state (`optimizer_states`).
//! 6. *Replicas*: the data-parallel replicas of a stage are a group too, for layers that send tokens to weights
//!    (experts). Their tensors are not whole: each replica has its own microbatch, and an all-to-all (`pairs`,
//!    `rows`) takes a part of it to the replica with the weights. So weights cut over replicas get the gradients of
//!    all replicas' tokens, and are neither summed nor copied among replicas. A parameter may be cut over members
//!    and then over replicas (`holders`).
//!
//! This is the tensor parallelism of Megatron-LM (Shoeybi et al., 2019; arXiv:1909.08053). Its layers are in
//! [`nn`](crate::nn).

mod adapter;
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
#[cfg(test)]
mod tests;
mod words;

pub use boundary::Cut;
pub use group::TensorGroup;
pub(crate) use holders::Holders;
pub(crate) use optimizer_states::tensors_like;
pub(crate) use words::OwnIds;
