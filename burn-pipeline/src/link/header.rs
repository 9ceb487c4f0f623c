//! What crosses between two ranks: tensors, and what they are about.

use crate::plan::StageId;
use crate::stage::Payload;

/// Which way a message goes through the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Direction {
    /// A stage's output, on its way to the next stage.
    Forward,
    /// The gradient of a stage's input, on its way to the stage before.
    Backward,
    /// A stage's value, on its way past the next stage.
    Skip {
        /// The stage that made it.
        from: usize,
    },
    /// The gradient of such a value, on its way back.
    SkipGradient {
        /// The stage that used it.
        from: usize,
    },
    /// The weight gradients (or, at the start, the weights) of a stage, on their way to its other replica.
    Replica,
    /// What the ranks that hold one shared parameter tell each other.
    Shared,
    /// A message that is only to be timed.
    Probe,
    /// Tensors of a stage that every rank is given: outputs of an evaluation, weights that were asked for.
    Spread,
    /// An output of the last stage, on its way to a rank that asked for it.
    Output,
    /// A piece of a stage's gradients, on its way between data-parallel replicas: to be added up (microbatch 0), or
    /// added up (microbatch 1).
    Gradient {
        /// The replica that sends it.
        from: usize,
    },
    /// A replica's piece of a stage's sharded tensors.
    Shard {
        /// The replica that sends it.
        from: usize,
    },
}

/// What a message is about: its receiving stage, its microbatch within the route, and its direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Header {
    /// The stage that receives it.
    pub stage: StageId,
    /// The microbatch, within the stage's route.
    pub microbatch: usize,
    /// Forward or backward.
    pub direction: Direction,
}

impl std::fmt::Display for Header {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.direction {
            Direction::Forward => "input",
            Direction::Backward => "output gradient",
            Direction::Skip { from } | Direction::SkipGradient { from } => {
                let what = if matches!(self.direction, Direction::Skip { .. }) { "value" } else { "gradient" };
                let Self { stage, microbatch, .. } = self;
                return write!(f, "the {what} from stage {from} for stage {stage}, microbatch {microbatch}");
            }
            Direction::Gradient { from } | Direction::Shard { from } => {
                let what = if matches!(self.direction, Direction::Shard { .. }) { "shard" } else { "gradients" };
                return write!(f, "replica {from}'s {what} of stage {}", self.stage);
            }
            Direction::Output => "output",
            Direction::Probe => return f.write_str("a message that is timed"),
            Direction::Spread => return write!(f, "tensors of stage {} for all ranks", self.stage),
            Direction::Replica => return write!(f, "the other replica's tensors for stage {}", self.stage),
            Direction::Shared => return write!(f, "the shared parameters of group {}", self.microbatch),
        };
        write!(f, "the {what} of stage {} for microbatch {}", self.stage, self.microbatch)
    }
}

/// What crosses between two ranks.
#[derive(Clone, Debug)]
pub struct Message {
    /// What it is about.
    pub header: Header,
    /// The tensors.
    pub payload: Payload,
}
