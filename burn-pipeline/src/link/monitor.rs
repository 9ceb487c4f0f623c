//! What a thread that does not hold a link can see of it.

use super::activity::Activity;
use super::error::Failure;

/// A view of a link for a thread that does not hold it, such as the thread that waits for the ranks of this
/// process.
pub trait Monitor: Send + Sync + std::fmt::Debug {
    /// What a rank was last doing; for a rank in another process, what it last reported.
    fn activity(&self, rank: usize) -> Activity;

    /// A number that changes whenever a rank of this process changes its activity.
    fn progress(&self) -> u64;

    /// Records a failure that was noticed outside of the link (a rank that does not answer), and tells every rank.
    fn abort(&self, failure: Failure);

    /// The first failure, if there was one.
    fn failure(&self) -> Option<Failure>;
}
