//! One rank's handle of a tensor-parallel group.

use crate::link::StageEnd;
use crate::ranks::RankSet;
use burn::module::ParamId;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// One rank's handle of a tensor-parallel group, or of the data-parallel replicas of a stage. Clones are one group.
///
/// A stage's factory finds both in its [`StageContext`](crate::train::StageContext): `group`, for the layers of
/// [`nn`](crate::nn), and `replicas`, for layers that send tokens to weights. A group of one rank exchanges
/// nothing, so one factory serves groups of any size.
///
/// A tensor of a group is in one of three states. *Whole*: all members have the same values, and use them in the
/// same way. *Cut* along an axis: each member has its piece. *Partial*: each member has one term of a sum.
/// Gradients have the same states. Each function changes the state in the forward, and changes it back in the
/// backward:
///
/// | function | from | to | backward |
/// |---|---|---|---|
/// | [`copy_to`](TensorGroup::copy_to) (Megatron's f) | whole | own use by each member | all-reduce |
/// | [`reduce_from`](TensorGroup::reduce_from) (Megatron's g) | partial | whole | nothing |
/// | [`scatter_to`](TensorGroup::scatter_to) | whole | cut | all-gather |
/// | [`gather_from`](TensorGroup::gather_from) | cut | whole | own piece |
/// | [`all_gather`](TensorGroup::all_gather) | cut | own use by each member | reduce-scatter |
/// | [`reduce_scatter`](TensorGroup::reduce_scatter) | partial | cut | all-gather |
/// | [`all_to_all`](TensorGroup::all_to_all) | cut along another axis | cut along this one | all-to-all |
/// | [`broadcast`](TensorGroup::broadcast) | one member's | own use by each member | reduce to that member |
#[derive(Clone, Debug)]
pub struct TensorGroup {
    pub(super) set: RankSet,
    /// How each piece was cut.
    pub(super) cuts: Arc<Mutex<HashMap<ParamId, CutAlong>>>,
    /// True if the other members do not exist (for measuring).
    pub(super) absent: bool,
    /// True if the link runs the group's collectives.
    pub(super) by_link: bool,
}

/// An axis, and the whole length along it.
#[derive(Clone, Copy, Debug)]
pub(super) struct CutAlong {
    pub(super) axis: usize,
    pub(super) whole: usize,
}

impl TensorGroup {
    /// A group of one rank: its layers have whole weights.
    pub fn alone() -> Self {
        Self::of(RankSet::alone())
    }

    fn of(set: RankSet) -> Self {
        Self { set, cuts: Arc::default(), absent: false, by_link: false }
    }

    /// This rank's handle of a group: `ranks` are its members' ranks in the job, and `member` is this rank's index.
    pub(crate) fn new(member: usize, ranks: impl IntoIterator<Item = usize>, end: StageEnd, timeout: Duration) -> Self {
        Self::of(RankSet::new(member, ranks, end, timeout))
    }

    /// The first rank's handle of a group of `size` ranks whose other ranks do not exist. Exchanges have the shapes
    /// and memory of the real ones, with zeros instead of the others' tensors. For measuring a stage.
    pub(crate) fn without_others(size: usize) -> Self {
        Self { absent: size > 1, ..Self::of(RankSet::without_others(size)) }
    }

    /// Makes it a group of data-parallel replicas, whose other messages come between those of the group.
    pub(crate) fn of_replicas(self) -> Self {
        Self { set: self.set.with_inbox(), ..self }
    }

    /// Sets whether the link runs the group's collectives; it must have formed the group then
    /// ([`Collectives::form`](crate::link::Collectives::form)).
    pub(crate) fn by_link(self, by_link: bool) -> Self {
        Self { by_link, ..self }
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.set.size()
    }

    /// This rank's index in the group, from 0.
    pub fn member(&self) -> usize {
        self.set.place()
    }

    /// Returns true if a rank of the job is in the group.
    pub(crate) fn contains(&self, rank: usize) -> bool {
        self.set.ranks().contains(&rank)
    }

    pub(crate) fn set(&self) -> &RankSet {
        &self.set
    }

    /// The parameters that are cut over the members.
    pub(crate) fn cut_parameters(&self) -> HashSet<ParamId> {
        self.cuts.lock().keys().copied().collect()
    }

    /// Returns true if one of these parameters is cut over the members.
    pub(crate) fn cuts_any(&self, parameters: impl IntoIterator<Item = ParamId>) -> bool {
        parameters.into_iter().any(|id| self.axis_of(id).is_some())
    }

    pub(super) fn is_alone(&self) -> bool {
        self.size() == 1
    }

    /// Returns true if the group's ranks are the data-parallel replicas of a stage.
    pub(super) fn is_of_replicas(&self) -> bool {
        self.set.has_inbox()
    }

    /// Describes the group's ranks. A stage may run the same collective over both kinds of groups, under different
    /// names.
    pub(super) fn in_words(&self) -> String {
        format!("{} {}", self.size(), if self.is_of_replicas() { "replicas" } else { "ranks" })
    }

    /// Checks, for the named layer, that this is a tensor-parallel group
    /// ([`StageContext::group`](crate::train::StageContext)), whose members all have the same samples.
    ///
    /// # Panics
    /// Panics if its ranks are a stage's data-parallel replicas.
    pub fn expect_members(&self, layer: &str) {
        let replicas = self.is_of_replicas();
        assert!(
            !replicas,
            "{layer} is cut over a tensor-parallel group, not over data-parallel replicas: \
             give it `StageContext::group`"
        );
    }

    /// Checks, for the named layer, that these are a stage's data-parallel replicas
    /// ([`StageContext::replicas`](crate::train::StageContext)), each of which has its own samples.
    ///
    /// # Panics
    /// Panics if it is a tensor-parallel group.
    pub fn expect_replicas(&self, layer: &str) {
        let members = !self.is_of_replicas() && !self.is_alone();
        assert!(
            !members,
            "{layer} is cut over data-parallel replicas, not over a tensor-parallel group: \
             give it `StageContext::replicas`"
        );
    }

    /// This member's part of `count` things that must be cut evenly.
    ///
    /// # Panics
    /// Panics if they cannot be cut evenly. `what` names them.
    pub fn share(&self, count: usize, what: &str) -> Range<usize> {
        let size = self.size();
        let choice = if self.is_of_replicas() { "Builder::data_parallel" } else { "Builder::tensor_parallel" };
        assert!(
            count.is_multiple_of(size),
            "{count} {what} cannot be cut evenly over the {size} ranks of a group; make their number a multiple of \
             {size}, or choose a size that divides {count} (`{choice}`)"
        );
        self.part(count)
    }

    /// This member's part of `count` things. If they cannot be cut evenly, the first members have one more.
    pub(crate) fn part(&self, count: usize) -> Range<usize> {
        let (each, more) = (count / self.size(), count % self.size());
        let start = |member: usize| member * each + member.min(more);
        start(self.member())..start(self.member() + 1)
    }
}

impl Default for TensorGroup {
    fn default() -> Self {
        Self::alone()
    }
}
