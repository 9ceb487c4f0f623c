//! One rank's handle of the group that holds its stages.

use crate::group::SharedInbox;
use crate::link::StageEnd;
use burn::module::ParamId;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The ranks that hold a stage together, or the data-parallel replicas of a stage, as one of them sees it; clones are one group.
///
/// A stage's factory finds both in its [`StageContext`](crate::train::StageContext): `group`, for the layers of [`nn`](crate::nn), and `replicas`, for
/// layers that send tokens to weights. A group of one rank exchanges nothing, so one factory serves groups of any size.
///
/// A tensor of a group is in one of three states. It is *whole*: all members hold the same values, and use them alike. It is *cut*
/// along an axis: each holds its piece. Or it is *partial*: what each holds are terms of a sum. Gradients have the same
/// states, and each function goes one way in the forward and the way back in the backward:
///
/// | function | from | to | backward |
/// |---|---|---|---|
/// | [`copy_to`](TensorGroup::copy_to) (Megatron's f) | whole | used by each member in its own way | all-reduce |
/// | [`reduce_from`](TensorGroup::reduce_from) (Megatron's g) | partial | whole | nothing |
/// | [`scatter_to`](TensorGroup::scatter_to) | whole | cut | all-gather |
/// | [`gather_from`](TensorGroup::gather_from) | cut | whole | own piece |
/// | [`all_gather`](TensorGroup::all_gather) | cut | used by each member in its own way | reduce-scatter |
/// | [`reduce_scatter`](TensorGroup::reduce_scatter) | partial | cut | all-gather |
/// | [`all_to_all`](TensorGroup::all_to_all) | cut along another axis | cut along this one | all-to-all |
/// | [`broadcast`](TensorGroup::broadcast) | one member's | used by each member in its own way | reduce to that member |
#[derive(Clone, Debug)]
pub struct TensorGroup {
    pub(super) member: usize,
    /// The members' ranks in the job, in their order.
    pub(super) ranks: Arc<[usize]>,
    /// `None` for a group of one.
    pub(super) end: Option<StageEnd>,
    pub(super) timeout: Duration,
    pub(super) cuts: Cuts,
    /// Are the other members not there?
    pub(super) absent: bool,
    /// Does the link run its collectives?
    pub(super) by_link: bool,
    /// Are the others' messages of the end of a row still to be taken?
    pub(super) ended: Arc<AtomicBool>,
    /// Where its messages wait if they come amid others; `None` where the ranks exchange nothing else.
    pub(super) inbox: Option<SharedInbox>,
}

/// How each piece was cut.
#[derive(Clone, Debug, Default)]
pub(super) struct Cuts(pub(super) Arc<Mutex<HashMap<ParamId, CutAlong>>>);

/// An axis, and the length of the whole along it.
#[derive(Clone, Copy, Debug)]
pub(super) struct CutAlong {
    pub(super) axis: usize,
    pub(super) whole: usize,
}

impl TensorGroup {
    /// A group of one rank: its layers hold whole weights.
    pub fn alone() -> Self {
        Self {
            member: 0,
            ranks: Arc::from([0]),
            end: None,
            timeout: Duration::ZERO,
            cuts: Cuts::default(),
            absent: false,
            by_link: false,
            ended: Arc::default(),
            inbox: None,
        }
    }

    /// The group of the ranks `ranks` of a job, as the one at place `member` sees it.
    pub(crate) fn new(member: usize, ranks: impl IntoIterator<Item = usize>, end: StageEnd, timeout: Duration) -> Self {
        Self { member, ranks: ranks.into_iter().collect(), end: Some(end), timeout, ..Self::alone() }
    }

    /// A group of so many ranks as the first one sees it if the others are not there: exchanges have the shapes and take the memory that they have
    /// among all, with zeros in the place of what others would send. For measuring a stage.
    pub(crate) fn without_others(size: usize) -> Self {
        Self { ranks: (0..size).collect(), absent: size > 1, ..Self::alone() }
    }

    /// The same of data-parallel replicas, whose other messages come amid those of the group.
    pub(crate) fn of_replicas(self, inbox: SharedInbox) -> Self {
        Self { inbox: Some(inbox), ..self }
    }

    /// The same group, whose collectives the link runs if `by_link`; it has formed the group then
    /// ([`Collectives::form`](crate::link::Collectives::form)).
    pub(crate) fn by_link(self, by_link: bool) -> Self {
        Self { by_link, ..self }
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.ranks.len()
    }

    /// This rank's place in the group, from 0.
    pub fn member(&self) -> usize {
        self.member
    }

    /// Is a rank of the job in the group?
    pub(crate) fn contains(&self, rank: usize) -> bool {
        self.ranks.contains(&rank)
    }

    /// Where messages of its ranks wait.
    pub(crate) fn inbox(&self) -> SharedInbox {
        self.inbox.clone().unwrap_or_default()
    }

    /// The parameters of which the members have pieces.
    pub(crate) fn cut_parameters(&self) -> HashSet<ParamId> {
        self.cuts.0.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }

    /// Have the members pieces of one of these parameters?
    pub(crate) fn cuts_any(&self, parameters: impl IntoIterator<Item = ParamId>) -> bool {
        parameters.into_iter().any(|id| self.axis_of(id).is_some())
    }

    /// Is there no other rank in the group?
    pub(super) fn is_alone(&self) -> bool {
        self.size() == 1
    }

    /// Are its ranks the data-parallel replicas of a stage?
    pub(super) fn is_of_replicas(&self) -> bool {
        self.inbox.is_some()
    }

    /// Its ranks in words: a stage may run the same collective over both kinds of groups, under different names.
    pub(super) fn in_words(&self) -> String {
        format!("{} {}", self.size(), if self.is_of_replicas() { "replicas" } else { "ranks" })
    }

    /// Makes sure, for a layer that is named, that these ranks hold a stage together ([`StageContext::group`](crate::train::StageContext)): all
    /// have the same samples.
    ///
    /// # Panics
    /// If they are a stage's data-parallel replicas.
    pub fn expect_members(&self, layer: &str) {
        let replicas = self.inbox.is_some();
        assert!(
            !replicas,
            "{layer} is cut over the ranks that hold its stage together, not over data-parallel replicas: give it `StageContext::group`"
        );
    }

    /// Makes sure, for a layer that is named, that these are a stage's data-parallel replicas ([`StageContext::replicas`](crate::train::StageContext)):
    /// each has samples of its own.
    ///
    /// # Panics
    /// If they hold a stage together.
    pub fn expect_replicas(&self, layer: &str) {
        let members = self.inbox.is_none() && !self.is_alone();
        assert!(
            !members,
            "{layer} is spread over data-parallel replicas, not over the ranks that hold its stage together: give it `StageContext::replicas`"
        );
    }

    /// This member's part of `count` things that are cut evenly.
    ///
    /// # Panics
    /// If they cannot be cut evenly; `what` names them.
    pub fn share(&self, count: usize, what: &str) -> Range<usize> {
        let size = self.size();
        let choice = if self.is_of_replicas() { "Builder::data_parallel" } else { "Builder::tensor_parallel" };
        assert!(
            count.is_multiple_of(size),
            "{count} {what} cannot be cut evenly over the {size} ranks of a group; make their number a multiple of {size}, or choose a size that divides {count} (`{choice}`)"
        );
        self.part(count)
    }

    /// This member's part of `count` things, of which the first members have one more where they cannot be cut evenly.
    pub(crate) fn part(&self, count: usize) -> Range<usize> {
        let (each, more) = (count / self.size(), count % self.size());
        let start = |member: usize| member * each + member.min(more);
        start(self.member)..start(self.member + 1)
    }
}

impl Default for TensorGroup {
    fn default() -> Self {
        Self::alone()
    }
}
