//! Stage metadata gathered from all ranks: what a stage reads from a batch, its parameters' names and sizes.

use crate::payload::{Kinds, Payload, PayloadSpec};
use crate::stage::{Batch, BatchChecks, ErasedStage, NamedWeight, StageError};
use crate::train::error::PipelineError;
use crate::vocabulary::{Piece, ids_of};
use burn_pipeline_plan::plan::StageId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The metadata of a built stage. Other processes get it without what is for the rank that holds the stage: they take
/// every batch, because that rank checks whether a batch fits.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StageFacts {
    pub(crate) stage: StageId,
    /// The kinds of its inputs and outputs.
    pub(crate) kinds: [Kinds; 2],
    /// The numbers of layers of which its factory requested its share (`StageContext::layers`).
    pub(crate) layers: BTreeSet<usize>,
    #[serde(skip)]
    pub(crate) extras: Vec<&'static str>,
    pub(crate) has_loss: bool,
    /// True if the specs at its boundary were declared.
    pub(crate) declared: bool,
    #[serde(skip)]
    pub(crate) takes: BatchChecks,
    pub(crate) weight_bytes: usize,
    pub(crate) trains: bool,
    /// True if it has state that its forward can change (running statistics).
    pub(crate) has_forward_state: bool,
    pub(crate) cut_over_replicas: bool,
    /// True if its parameters are sharded where there are data-parallel replicas.
    pub(crate) sharded: bool,
    /// Paths of its parameters, each with a name in the whole model.
    pub(crate) names: Vec<(String, String)>,
    /// True if names were given to it.
    pub(crate) named: bool,
    /// The declared lists of layers ([`Names::layers_from`](crate::stage::Names::layers_from)), and whether it has a
    /// parameter in each.
    pub(crate) lists: Vec<(String, bool)>,
    /// The vocabulary-parallel layer that it is a piece of, if it is not a stage.
    pub(crate) piece: Option<Piece>,
}

impl StageFacts {
    pub(crate) fn of(stage: StageId, held: &dyn ErasedStage) -> Self {
        let (names, said) = (Self::names(held.named_weights()), &held.options().names);
        let paths: Vec<&str> = names.iter().map(|(path, _)| path.as_str()).collect();
        let (named, lists) = (!said.are_paths(), said.lists(&paths).collect());
        Self {
            stage,
            kinds: held.kinds(),
            layers: held.options().layers.clone(),
            extras: held.extras(),
            has_loss: held.batch_checks().target.is_some(),
            declared: held.options().declared.is_some(),
            takes: held.batch_checks(),
            has_forward_state: !held.forward_state().is_empty(),
            weight_bytes: held.weight_bytes(),
            trains: held.trains(),
            cut_over_replicas: held.options().spread,
            sharded: held.options().sharded == Some(true),
            names,
            named,
            lists,
            piece: None,
        }
    }

    pub(crate) fn of_piece(piece: Piece, stage: StageId, held: &dyn ErasedStage) -> Self {
        Self { piece: Some(piece), ..Self::of(stage, held) }
    }

    /// Checks that the vocabulary-parallel layer takes what the batch holds for it.
    pub(crate) fn check_ids(&self, batch: &Batch) -> Result<(), PipelineError> {
        let ids = |layer, payload: &Payload| {
            ids_of(payload).map(drop).map_err(|source| {
                let got = PayloadSpec::of_payload(payload);
                PipelineError::RefusedIds { layer, source: Box::new(source), got }
            })
        };
        self.piece.iter().flat_map(|piece| piece.layers()).try_for_each(|layer| match layer {
            Piece::Head => batch.whole_target().map_or(Ok(()), |target| ids("head", target)),
            Piece::Embedding | Piece::Tied => ids("embedding", batch.whole_input()),
        })
    }

    /// Pairs each path with each of its names.
    fn names(weights: Vec<NamedWeight>) -> Vec<(String, String)> {
        let named = |weight: NamedWeight| weight.names.into_iter().map(move |name| (weight.path.clone(), name));
        weights.into_iter().flat_map(named).collect()
    }

    /// Checks that the stage takes what the batch holds for it. With `embedded`, its input comes from the embedding.
    pub(crate) fn check(&self, batch: &Batch, embedded: bool) -> Result<(), PipelineError> {
        let refused = |source, got: &Payload| {
            let got = PayloadSpec::of_payload(got);
            PipelineError::Refused { stage: self.stage, source, got }
        };
        if self.stage.index() == 0 && !embedded {
            let input = batch.whole_input();
            (self.takes.input)(input.clone()).map_err(|source| refused(StageError::Input(source), input))?;
        }
        let extra = batch.whole_extra(self.stage.index(), &self.extras)?;
        let taken = (self.takes.extra)(extra.clone());
        taken.map_err(|source| refused(StageError::extra(source, &self.extras), &extra))?;
        if let (Some(takes), Some(target)) = (&self.takes.target, batch.whole_target()) {
            takes(target.clone()).map_err(|source| refused(StageError::Target(source), target))?;
        }
        Ok(())
    }
}
