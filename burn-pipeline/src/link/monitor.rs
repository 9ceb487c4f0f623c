//! What can be seen of a link from outside: what its ranks are doing, and whether it has failed.

use super::error::Failure;
use super::header::Header;
use burn_pipeline_plan::plan::StageId;

/// What a rank is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Activity {
    /// Nothing: the rank is between two calls.
    #[default]
    Idle,
    /// Building a stage.
    Building(StageId),
    /// Running a task of the plan.
    Task(burn_pipeline_plan::plan::Task),
    /// Waiting for a message from another rank.
    Waiting(Header, usize),
    /// Gathering values from all ranks.
    Gathering,
    /// Waiting until the programs of all ranks have made the same call.
    Calling,
    /// Stepping the weights.
    Optimizing,
    /// Writing a checkpoint or an export.
    Saving,
    /// Reading a checkpoint or pretrained weights.
    Loading,
}

impl std::fmt::Display for Activity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Activity::Idle => f.write_str("is between two calls"),
            Activity::Building(stage) => write!(f, "is building stage {stage}"),
            Activity::Task(task) => write!(f, "is running {task}"),
            Activity::Waiting(header, peer) => write!(f, "is itself waiting for {header} from rank {peer}"),
            Activity::Gathering => f.write_str("is gathering values from all ranks"),
            Activity::Calling => f.write_str("is waiting for all ranks to make the same call"),
            Activity::Optimizing => f.write_str("is stepping its weights"),
            Activity::Saving => f.write_str("is writing a checkpoint or an export"),
            Activity::Loading => f.write_str("is reading a checkpoint or pretrained weights"),
        }
    }
}

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
