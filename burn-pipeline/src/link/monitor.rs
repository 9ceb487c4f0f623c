//! What a thread that does not hold a link can see of it.

use super::activity::Activity;
use super::error::Failure;

/// A view of a link for a thread that does not hold it, such as the one that waits for the ranks of this process.
pub trait Monitor: Send + Sync + std::fmt::Debug {
    /// What a rank was last seen doing; of a rank in another process, what it reported last.
    fn activity(&self, rank: usize) -> Activity;

    /// A number that changes whenever a rank of this process begins something else.
    fn progress(&self) -> u64;

    /// Records a failure that was seen outside of the link (a rank that does not answer), and informs every rank.
    fn abort(&self, failure: Failure);

    /// The first failure, if there was one.
    fn failure(&self) -> Option<Failure>;
}
