//! The agreement of all ranks on tied parameters, and what they exchange for it.

use super::declare::SharedParameter;
use super::report::SharedReport;
use crate::execute::Executor;
use crate::payload::AnyTensor;
use crate::stage::{NamedParameter, Offered};
use crate::tensor_parallel::TensorGroup;
use burn::module::ParamId;
use burn_pipeline_plan::plan::StageId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct HeldParameter {
    pub(super) stage: StageId,
    pub(super) id: ParamId,
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
        Self { stage, id, path, name, shape, cut, dtype: format!("{dtype:?}"), bytes, trainable }
    }

    /// Its value on this rank; `None` if another rank holds it.
    pub(super) fn value(&self, executor: &mut Executor) -> Option<AnyTensor> {
        let weights = executor.stages().get(&self.stage)?.weights();
        weights.into_iter().find(|(id, _)| *id == self.id).map(|(_, value)| value)
    }

    /// Its shape, element type, whether it is trained, and how it is cut, as text.
    pub(super) fn spec(&self) -> String {
        let trained = if self.trainable { "trained" } else { "frozen" };
        let cut = self.cut.map(|axis| format!(", cut along axis {axis}")).unwrap_or_default();
        format!("{:?} of {}, {trained}{cut}", self.shape, self.dtype)
    }
}

/// The copies of a tied parameter on one route of the model, in model order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Member {
    /// The declaration's name.
    pub(super) name: String,
    pub(super) copies: Vec<HeldParameter>,
}

/// Members held by exactly the same ranks, possibly only one. With tensor-parallel groups, these are the ranks with the
/// same place in their groups.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Group {
    /// Ascending.
    pub(super) ranks: Vec<usize>,
    /// The number of the group among all that ranks created.
    pub(super) number: usize,
    pub(super) members: Vec<Member>,
}

/// The agreement of all ranks: which parameters are tied, and over which ranks.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Sharing {
    pub(super) groups: Vec<Group>,
    /// Copies that are not the first of their parameter: the gradient norm leaves them out.
    pub(super) repeats: BTreeSet<(StageId, ParamId)>,
    pub(crate) reports: Vec<SharedReport>,
    /// The names in the model of each declaration's copies.
    pub(super) names: BTreeMap<String, BTreeSet<String>>,
    pub(super) declared: Vec<SharedParameter>,
    /// True if copies were compared after the first step; the next step compares them otherwise.
    pub(crate) compared: bool,
    /// True if a module was replaced since copies were compared; the next training call or save compares them first.
    pub(crate) replaced: bool,
}

impl Sharing {
    /// Returns true if this is a copy other than the first, which counts for all.
    pub(crate) fn repeats(&self, stage: StageId, id: ParamId) -> bool {
        self.repeats.contains(&(stage, id))
    }

    /// The declaration's name of the tied parameter that a stage first holds at this path.
    pub(crate) fn name_of(&self, stage: StageId, path: &str) -> Option<&str> {
        let mut reports = self.reports.iter();
        reports.find(|report| report.holds(stage.index(), path)).map(|report| report.name.as_str())
    }

    /// The names in the model of all copies of the tied parameter that a stage first holds at this path; none if it is
    /// not tied.
    pub(crate) fn names_of(&self, stage: StageId, path: &str) -> impl Iterator<Item = &String> {
        self.name_of(stage, path).and_then(|name| self.names.get(name)).into_iter().flatten()
    }

    /// Gives this rank's copies the name of their first copy for groups of optimizers and learning rates, so that all
    /// copies are stepped alike.
    pub(crate) fn name_copies(&self, executor: &mut Executor) {
        for member in self.groups.iter().flat_map(|group| &group.members) {
            for copy in &member.copies {
                if let Some(held) = executor.stages().get_mut(&copy.stage) {
                    held.options_mut().names.copy_of(copy.id, member.copies[0].name.clone());
                }
            }
        }
    }

    /// The path of a parameter that a new module would remove from, or add to, the tied parameters.
    pub(crate) fn changed_by(&self, offered: &Offered) -> Option<String> {
        let shared = |of: &[NamedParameter]| -> Vec<(ParamId, String)> {
            let held = of.iter().filter(|parameter| self.declares(&parameter.path));
            held.map(|parameter| (parameter.id, parameter.path.clone())).collect()
        };
        let (before, after) = (shared(&offered.before), shared(&offered.after));
        let lost = before.iter().find(|copy| !after.contains(copy));
        lost.or_else(|| after.iter().find(|copy| !before.contains(copy))).map(|(_, path)| path.clone())
    }

    /// Returns true if a declaration of tied parameters names this path.
    pub(crate) fn declares(&self, path: &str) -> bool {
        self.declared.iter().any(|shared| shared.holds(path))
    }
}
