//! The facts of a pipeline's stages, in model order, on whichever rank they are.

use super::facts::StageFacts;
use crate::payload::{alike, listed};
use crate::stage::{Batch, Microbatches};
use crate::train::error::{BuildError, PipelineError};
use crate::train::shared::{SharedCopy, SharedReport};
use crate::vocabulary::Piece;
use burn::module::{ParamGroup, ParamId};
use burn_pipeline_plan::cost::Partition;
use burn_pipeline_plan::plan::{SkipEdge, StageId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// All stages of a model, and their tied parameters.
#[derive(Debug)]
pub(crate) struct Stages {
    pub(crate) facts: Vec<StageFacts>,
    /// The vocabulary-parallel layers.
    pieces: Vec<StageFacts>,
    pub(crate) shared: Vec<SharedReport>,
    /// The names of all parameters and buffers in the model, each once.
    pub(crate) names: Arc<[String]>,
    /// True if steps compute gradients of the batch.
    pub(crate) input_gradients: bool,
}

impl Stages {
    /// Collects the facts of all ranks. Data-parallel replicas have the same facts of a stage.
    pub(crate) fn new(mut facts: Vec<StageFacts>, shared: Vec<SharedReport>, input_gradients: bool) -> Self {
        facts.sort_by_key(|facts| facts.stage);
        facts.dedup_by_key(|facts| facts.stage);
        let names: BTreeSet<&String> = facts.iter().flat_map(|facts| &facts.names).map(|(_, name)| name).collect();
        let names = names.into_iter().cloned().collect();
        let (pieces, facts) = facts.into_iter().partition(|facts| facts.piece.is_some());
        Self { facts, pieces, shared, names, input_gradients }
    }

    /// Collects what each rank built: its facts, and the tied parameters, which are the same on all.
    pub(crate) fn of_ranks(built: Vec<(Vec<StageFacts>, Vec<SharedReport>)>, input_gradients: bool) -> Self {
        let (facts, shared): (Vec<_>, Vec<_>) = built.into_iter().unzip();
        Self::new(facts.concat(), shared.into_iter().next().unwrap_or_default(), input_gradients)
    }

    /// Replaces the facts of some stages.
    pub(crate) fn renewed(&self, now: Vec<StageFacts>) -> Self {
        let others =
            self.facts.iter().chain(&self.pieces).filter(|known| !now.iter().any(|facts| facts.stage == known.stage));
        let facts = others.cloned().chain(now.iter().cloned()).collect();
        Self::new(facts, self.shared.clone(), self.input_gradients)
    }

    /// Refuses a group that matches no parameter of the model.
    pub(crate) fn refuse_empty_group<'a>(
        &self,
        mut groups: impl Iterator<Item = &'a ParamGroup>,
    ) -> Result<(), BuildError> {
        // No parameter has this id. Ids differ from rank to rank, so groups find parameters by name.
        let matches = |group: &ParamGroup| self.names.iter().any(|name| group.matches(&ParamId::from(0), Some(name)));
        match groups.find(|group| !matches(group)) {
            None => Ok(()),
            Some(group) => Err(BuildError::EmptyGroup { group: Box::new(group.clone()), names: some(&*self.names) }),
        }
    }

    /// Refuses a loss that would not be computed, and a declared list of layers in which no stage has a parameter.
    pub(crate) fn refuse_unused(&self) -> Result<(), BuildError> {
        let mut losses = self.facts.iter().filter(|facts| facts.has_loss).map(|facts| facts.stage.index());
        let last = self.last();
        let found = if self.spreads(Piece::Head) { losses.next() } else { losses.find(|&stage| stage != last) };
        if let Some(stage) = found {
            return Err(match self.spreads(Piece::Head) {
                true => BuildError::LossBeforeHead { stage },
                false => BuildError::LossInside { stage, last },
            });
        }
        let lists = || self.facts.iter().flat_map(|facts| &facts.lists);
        let is_empty = |list: &str| !lists().any(|(other, holds)| other == list && *holds);
        let Some((list, _)) = lists().find(|(list, _)| is_empty(list)) else { return Ok(()) };
        let paths: BTreeSet<&String> = self.facts.iter().flat_map(|facts| &facts.names).map(|(path, _)| path).collect();
        Err(BuildError::EmptyList { list: list.clone(), paths: some(paths) })
    }

    pub(crate) fn has_loss(&self) -> bool {
        self.spreads(Piece::Head) || self.facts.iter().any(|facts| facts.has_loss)
    }

    /// Returns true if this layer is vocabulary parallel.
    fn spreads(&self, layer: Piece) -> bool {
        self.pieces.iter().filter_map(|facts| facts.piece).any(|piece| piece.layers().contains(&layer))
    }

    fn last(&self) -> usize {
        self.facts.iter().map(|facts| facts.stage.index()).max().unwrap_or(0)
    }

    /// The last stage, if it has no loss.
    pub(crate) fn lacks_loss(&self) -> Option<usize> {
        let last = self.last();
        let lacks = self.facts.iter().any(|facts| facts.stage.index() == last && !facts.has_loss);
        (lacks && !self.spreads(Piece::Head)).then_some(last)
    }

    /// Refuses stages that do not fit together: with different numbers of layers, or with an output type that is not
    /// the next one's input type.
    pub(crate) fn fit_together(&self, skips: &[SkipEdge]) -> Result<(), BuildError> {
        let mut asked = self.facts.iter().filter(|facts| !facts.layers.is_empty());
        if let Some(first) = asked.next()
            && let Some(other) = asked.find(|facts| facts.layers != first.layers)
        {
            let of = |facts: &StageFacts| facts.layers.iter().map(usize::to_string).collect::<Vec<_>>().join(" and ");
            let (stage, differs) = (first.stage.index(), other.stage.index());
            return Err(BuildError::OtherLayers { stage, layers: of(first), differs, others: of(other) });
        }
        let copies = || self.facts.iter().flat_map(|from| self.facts.iter().map(move |to| (from, to)));
        for (from, to) in copies().filter(|(from, to)| from.stage.route() == to.stage.route()) {
            let (sender, receiver) = (from.stage.index(), to.stage.index());
            let next = (sender + 1 == receiver).then(|| Some((from.kinds[1].next(), to.kinds[0].next())));
            let edge = skips.contains(&SkipEdge { from: sender, to: receiver }).then(|| {
                // Values of skip edges are ordered by the stages at their other ends.
                let starts = skips.iter().filter(|edge| edge.from == sender && edge.to < receiver).count();
                let ends = skips.iter().filter(|edge| edge.to == receiver && edge.from < sender).count();
                from.kinds[1].edge(starts).zip(to.kinds[0].edge(ends))
            });
            if let Some((given, taken)) = next.or(edge).flatten().filter(|(given, taken)| !alike(given, taken)) {
                let (given, taken) = (listed(given), listed(taken));
                return Err(BuildError::Boundary { from: from.stage, to: to.stage, given, taken });
            }
        }
        Ok(())
    }

    /// The first stage with weights that are cut over data-parallel replicas.
    pub(crate) fn cut_over_replicas(&self) -> Option<StageId> {
        self.facts.iter().find(|facts| facts.cut_over_replicas).map(|facts| facts.stage)
    }

    /// The first stage with a trained parameter: no gradient leaves it towards the input. The last one if none has any,
    /// since a step runs to the loss and back; the first one if a vocabulary-parallel embedding is before it, or if the
    /// caller wants gradients of the batch.
    pub(crate) fn first_trained(&self) -> usize {
        if self.spreads(Piece::Embedding) || self.input_gradients {
            return 0;
        }
        let trained = self.facts.iter().filter(|facts| facts.trains).map(|facts| facts.stage.index());
        trained.min().unwrap_or_else(|| self.last())
    }

    /// Bytes of each stage's parameters, in model order.
    pub(crate) fn weight_bytes(&self) -> Vec<usize> {
        self.facts.iter().filter(|facts| facts.stage.route() == 0).map(|facts| facts.weight_bytes).collect()
    }

    /// Cuts a batch into at most `wanted` microbatches, and checks that the stages take it. No rank has run anything
    /// yet, and accumulated gradients stay.
    pub(crate) fn admit(&self, batch: Batch, wanted: usize) -> Result<Microbatches, PipelineError> {
        let batch = batch.cut(wanted)?;
        let embedded = self.spreads(Piece::Embedding);
        for facts in &self.facts {
            batch.wholes().try_for_each(|whole| facts.check(whole, embedded))?;
        }
        for facts in &self.pieces {
            batch.wholes().try_for_each(|whole| facts.check_ids(whole))?;
        }
        if batch.len() < wanted {
            tracing::warn!(samples = batch.samples(), wanted, "fewer samples than microbatches: running one a sample");
        }
        Ok(batch)
    }

    /// Like [`Stages::admit`], for a batch to train on.
    pub(crate) fn admit_training(
        &self,
        batch: Batch,
        wanted: usize,
        ranks: usize,
    ) -> Result<Microbatches, PipelineError> {
        let batch = self.admit(batch, wanted)?;
        if !batch.has_target() {
            return Err(PipelineError::NoTarget);
        }
        if self.input_gradients && !batch.has_floats() {
            return Err(PipelineError::NoFloats);
        }
        if let Some(last) = self.lacks_loss() {
            return Err(PipelineError::NoLoss { last, ranks });
        }
        Ok(batch)
    }

    /// A name that two stages claim for parameters that are not copies of a tied one, and the two stages.
    pub(crate) fn claimed_twice(&self) -> Option<(String, usize, usize)> {
        let mut claimed: BTreeMap<&str, (usize, Option<usize>)> = BTreeMap::new();
        for facts in self.facts.iter().chain(&self.pieces).filter(|facts| facts.stage.route() == 0) {
            let stage = facts.stage.index();
            for (path, name) in &facts.names {
                let shared = self.shared_at(stage, path);
                match claimed.insert(name, (stage, shared)) {
                    Some((first, other)) if shared.is_none() || shared != other => {
                        return Some((name.clone(), first, stage));
                    }
                    _ => {}
                }
            }
        }
        None
    }

    /// The stage that holds a layer, if stages asked for their share of one number of layers.
    pub(crate) fn of_layer(&self, layer: usize, cut: Option<&Partition>) -> Option<usize> {
        let layers = *self.facts.first()?.layers.first()?;
        let stages = self.facts.iter().filter(|facts| facts.stage.route() == 0).count();
        let even = Partition::even(layers, stages).ok();
        cut.or(even.as_ref())?.ranges().position(|range| range.contains(&layer))
    }

    /// The names of copies of tied parameters whose first copy has another name, and so the same values. If adapters
    /// are added to weights, copies with adapters have values of their own.
    pub(crate) fn named_copies(&self, merged: bool) -> BTreeSet<String> {
        let adapted = |copy: &SharedCopy| self.name_beside(copy, &format!("{}.lora.a", copy.path)).is_some();
        let tied = self.shared.iter().filter(|report| !merged || !report.copies.iter().any(adapted));
        let copies = tied.flat_map(|report| {
            let mut names = self.names_of(report);
            let first = names.next();
            names.filter(move |name| Some(*name) != first)
        });
        copies.cloned().collect()
    }

    /// The names of a tied parameter's copies in the model, in the order of its declaration.
    pub(crate) fn names_of<'a>(&'a self, report: &'a SharedReport) -> impl Iterator<Item = &'a String> {
        report.copies.iter().filter_map(|copy| self.name_beside(copy, &copy.path))
    }

    /// The name of the parameter at a path of a copy's stage.
    fn name_beside(&self, copy: &SharedCopy, path: &str) -> Option<&String> {
        let mut all = self.facts.iter().chain(&self.pieces);
        let facts = all.find(|facts| facts.stage == StageId::new(copy.stage))?;
        facts.names.iter().find(|(own, _)| own == path).map(|(_, name)| name)
    }

    /// The index of the tied parameter that a stage holds at this path.
    fn shared_at(&self, stage: usize, path: &str) -> Option<usize> {
        self.shared.iter().position(|report| report.holds(stage, path))
    }
}

/// Some of these names, for errors.
fn some<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    names.into_iter().take(8).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
