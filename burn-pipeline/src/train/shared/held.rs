//! What ranks exchange about their parameters at the start.

use crate::stage::NamedParameter;
use crate::tensor_parallel::TensorGroup;
use burn_pipeline_plan::plan::StageId;
use serde::{Deserialize, Serialize};

/// One parameter of one stage.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct HeldParameter {
    pub(super) stage: StageId,
    /// Burn's id.
    pub(super) id: u64,
    pub(super) path: String,
    /// Its name in the whole model.
    pub(super) name: String,
    /// The shape of the whole parameter, also if ranks have pieces.
    pub(super) shape: Vec<usize>,
    /// The axis along which the tensor-parallel group cuts it.
    pub(super) cut: Option<usize>,
    /// Element type, by name.
    pub(super) dtype: String,
    pub(super) bytes: usize,
    pub(super) trainable: bool,
}

impl HeldParameter {
    /// The parameter of a stage that `group` holds.
    pub(super) fn new(stage: StageId, parameter: NamedParameter, group: &TensorGroup) -> Self {
        let NamedParameter { path, name, id, shape, dtype, trainable } = parameter;
        let (shape, cut) = (group.whole_shape(id, shape.into()).to_vec(), group.axis_of(id));
        let bytes = shape.iter().product::<usize>() * dtype.size();
        Self { stage, id: id.val(), path, name, shape, cut, dtype: format!("{dtype:?}"), bytes, trainable }
    }

    /// Its shape, element type, whether it is trained, and how it is cut, as text.
    pub(super) fn spec(&self) -> String {
        let trained = if self.trainable { "trained" } else { "frozen" };
        let cut = self.cut.map(|axis| format!(", cut along axis {axis}")).unwrap_or_default();
        format!("{:?} of {}, {trained}{cut}", self.shape, self.dtype)
    }
}
