//! The agreement of all ranks on tied parameters.

use super::declare::SharedParameter;
use super::report::SharedReport;
use crate::execute::Executor;
use crate::stage::{NamedParameter, Offered};
use burn::module::ParamId;
use burn_pipeline_plan::plan::StageId;
use std::collections::{BTreeMap, BTreeSet};

/// One copy of a tied parameter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Copy {
    pub(super) stage: StageId,
    pub(super) id: ParamId,
    pub(super) path: String,
}

/// The copies of a tied parameter on one route of the model, in model order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Member {
    /// The declaration's name.
    pub(super) name: String,
    /// The first copy's name in the model.
    pub(super) in_model: String,
    pub(super) copies: Vec<Copy>,
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
    pub(super) repeats: BTreeSet<(StageId, u64)>,
    pub(super) reports: Vec<SharedReport>,
    /// The names in the model of each declaration's copies.
    pub(super) names: BTreeMap<String, BTreeSet<String>>,
    /// What the user declared.
    pub(super) declared: Vec<SharedParameter>,
    /// True if copies were compared after the first step.
    pub(super) compared: bool,
    /// True if a module was replaced since copies were compared.
    pub(super) replaced: bool,
}

impl Sharing {
    /// Returns true if this is a copy other than the first, which counts for all.
    pub(crate) fn repeats(&self, stage: StageId, id: ParamId) -> bool {
        self.repeats.contains(&(stage, id.val()))
    }

    /// The declaration's name of the tied parameter that a stage first holds at this path.
    pub(crate) fn name_of(&self, stage: StageId, path: &str) -> Option<&str> {
        let holds =
            |report: &&SharedReport| report.copies.iter().any(|copy| copy.stage == stage.index() && copy.path == path);
        self.reports.iter().find(holds).map(|report| report.name.as_str())
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
                    held.options_mut().names.copy_of(copy.id, member.in_model.clone());
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

    /// Makes the next step compare copies again.
    pub(crate) fn compare_again(&mut self) {
        self.compared = false;
    }

    /// Makes the next training call or save compare copies first.
    pub(crate) fn module_replaced(&mut self) {
        self.replaced = true;
    }

    /// Returns true if a module was replaced since copies were compared.
    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced
    }

    /// The reports on tied parameters.
    pub(crate) fn reports(&self) -> &[SharedReport] {
        &self.reports
    }
}
