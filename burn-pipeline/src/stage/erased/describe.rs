//! What is known about a stage before anything runs: its module's type, what it reads from a batch, and its options.

use super::options::StageOptions;
use super::typed::Typed;
use crate::payload::Kinds;
use crate::stage::engine::BatchChecks;
use crate::stage::error::StageError;
use crate::stage::module::Stage;

/// What is known about a stage before anything runs.
pub(crate) trait DescribeStage {
    /// The type of its module, for messages.
    fn module_type(&self) -> &'static str;
    /// The kinds of its input and its output.
    fn kinds(&self) -> [Kinds; 2];
    /// Why its module was refused, if it was.
    fn refused(&self) -> Option<StageError>;
    /// The names of the extras that it reads.
    fn extras(&self) -> Vec<&'static str>;
    /// Checks of what it reads from a batch; the target has a check if the stage has a loss.
    fn batch_checks(&self) -> BatchChecks;
    /// The user's options for it.
    fn options(&self) -> &StageOptions;
    /// The user's options, to be changed before an engine is chosen.
    fn options_mut(&mut self) -> &mut StageOptions;
}

impl<M: Stage> DescribeStage for Typed<M> {
    fn module_type(&self) -> &'static str {
        std::any::type_name::<M>()
    }

    fn kinds(&self) -> [Kinds; 2] {
        self.function.kinds()
    }

    fn refused(&self) -> Option<StageError> {
        self.module.as_ref().err().cloned()
    }

    fn extras(&self) -> Vec<&'static str> {
        self.module.as_ref().map(M::extras).unwrap_or_default()
    }

    fn batch_checks(&self) -> BatchChecks {
        self.function.batch_checks()
    }

    fn options(&self) -> &StageOptions {
        &self.options
    }

    fn options_mut(&mut self) -> &mut StageOptions {
        &mut self.options
    }
}
