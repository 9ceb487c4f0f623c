//! What ranks exchange about their parameters at the start.

use crate::plan::StageId;
use crate::stage::NamedParameter;
use serde::{Deserialize, Serialize};

/// One parameter of one stage.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct HeldParameter {
    pub(super) stage: StageId,
    /// Burn's identifier.
    pub(super) id: u64,
    pub(super) path: String,
    /// Its name in the whole model.
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    /// Element type, by name.
    pub(super) dtype: String,
    pub(super) bytes: usize,
    pub(super) trainable: bool,
}

impl HeldParameter {
    pub(super) fn new(stage: StageId, parameter: NamedParameter) -> Self {
        let NamedParameter { path, name, id, shape, dtype, trainable } = parameter;
        let bytes = shape.iter().product::<usize>() * dtype.size();
        Self { stage, id: id.val(), path, name, shape, dtype: format!("{dtype:?}"), bytes, trainable }
    }

    /// Shape, element type and whether it is trained, in words.
    pub(super) fn spec(&self) -> String {
        let trained = if self.trainable { "trained" } else { "frozen" };
        format!("{:?} of {}, {trained}", self.shape, self.dtype)
    }
}
