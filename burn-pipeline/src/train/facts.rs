//! What a stage says of itself, wherever it lives: what it reads from a batch, its parameters' names and sizes.

use crate::plan::StageId;
use crate::stage::{Batch, BatchChecks, ErasedStage, Kinds, NamedWeight, Payload, PayloadSpec, StageError};
use crate::train::error::PipelineError;
use crate::vocabulary::{Piece, is_ids};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What a stage says of itself once it is built.
#[derive(Debug, Clone)]
pub(crate) struct StageFacts {
    pub(crate) stage: StageId,
    /// The kinds of what it takes, and of what it gives.
    pub(crate) kinds: [Kinds; 2],
    /// Of how many layers its factory asked for its share (`StageContext::layers`).
    pub(crate) layers: BTreeSet<usize>,
    /// Names of the extras that it reads from a batch.
    pub(crate) extras: Vec<&'static str>,
    pub(crate) has_loss: bool,
    /// Were the specs at its boundary declared?
    pub(crate) declared: bool,
    pub(crate) takes: BatchChecks,
    pub(crate) weight_bytes: usize,
    /// Has it state that its forward can change (running statistics)?
    pub(crate) has_forward_state: bool,
    /// Are some of its weights spread over data-parallel replicas?
    pub(crate) spread: bool,
    /// Paths of its parameters, each with a name in the whole model.
    pub(crate) names: Vec<(String, String)>,
    /// Was anything said of its names?
    pub(crate) named: bool,
    /// The lists of layers that were declared ([`Names::layers_from`](crate::stage::Names::layers_from)), each with
    /// whether it has a parameter there.
    pub(crate) lists: Vec<(String, bool)>,
    /// The layer of the vocabulary that it is a piece of, where it is no stage.
    pub(crate) piece: Option<Piece>,
}

impl StageFacts {
    /// What a stage says; `spread` tells whether some of its weights are spread over data-parallel replicas.
    pub(crate) fn of(stage: StageId, held: &dyn ErasedStage, spread: bool) -> Self {
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
            weight_bytes: held.weights().iter().map(|(_, weight)| weight.bytes()).sum(),
            spread,
            names,
            named,
            lists,
            piece: None,
        }
    }

    /// What the pieces of a vocabulary's layer say.
    pub(crate) fn of_piece(piece: Piece, stage: StageId, held: &dyn ErasedStage) -> Self {
        Self { piece: Some(piece), ..Self::of(stage, held, false) }
    }

    /// Does the layer of the vocabulary take what a batch holds for it?
    pub(crate) fn check_ids(&self, batch: &Batch) -> Result<(), PipelineError> {
        let refused = |layer, source, got: &Payload| {
            let got = PayloadSpec::of_payload(got);
            PipelineError::RefusedIds { layer, source: Box::new(source), got }
        };
        let input = batch.whole_input();
        self.piece.iter().flat_map(|piece| piece.layers()).try_for_each(|layer| match (layer, batch.whole_target()) {
            (Piece::Head, Some(target)) => is_ids(target.clone()).map_err(|source| refused("head", source, target)),
            (Piece::Head, None) => Ok(()),
            (Piece::Embedding | Piece::Tied, _) => {
                is_ids(input.clone()).map_err(|source| refused("embedding", source, input))
            }
        })
    }

    /// Each path with each name.
    fn names(weights: Vec<NamedWeight>) -> Vec<(String, String)> {
        let named = |weight: NamedWeight| weight.names.into_iter().map(move |name| (weight.path.clone(), name));
        weights.into_iter().flat_map(named).collect()
    }

    /// Does the stage take what a batch holds for it?
    /// With `embedded`, its input comes from the embedding.
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
        if let (Some(takes), Some(target)) = (self.takes.target, batch.whole_target()) {
            takes(target.clone()).map_err(|source| refused(StageError::Target(source), target))?;
        }
        Ok(())
    }
}

/// What another process learns of a stage.
#[derive(Serialize, Deserialize)]
pub(crate) struct SentFacts {
    pub(crate) stage: StageId,
    kinds: [Kinds; 2],
    layers: BTreeSet<usize>,
    has_loss: bool,
    declared: bool,
    weight_bytes: usize,
    has_forward_state: bool,
    spread: bool,
    names: Vec<(String, String)>,
    named: bool,
    lists: Vec<(String, bool)>,
    pub(crate) piece: Option<Piece>,
}

impl SentFacts {
    pub(crate) fn of(facts: &StageFacts) -> Self {
        let StageFacts { stage, has_loss, declared, weight_bytes, has_forward_state, spread, named, piece, .. } =
            *facts;
        Self {
            stage,
            kinds: facts.kinds.clone(),
            layers: facts.layers.clone(),
            has_loss,
            declared,
            weight_bytes,
            has_forward_state,
            spread,
            names: facts.names.clone(),
            named,
            lists: facts.lists.clone(),
            piece,
        }
    }

    /// Whether a batch fits the stage is checked by the process that holds it: elsewhere every batch does.
    pub(crate) fn facts(self) -> StageFacts {
        StageFacts {
            stage: self.stage,
            kinds: self.kinds,
            layers: self.layers,
            extras: Vec::new(),
            has_loss: self.has_loss,
            declared: self.declared,
            takes: BatchChecks { input: |_| Ok(()), extra: |_| Ok(()), target: None },
            weight_bytes: self.weight_bytes,
            has_forward_state: self.has_forward_state,
            spread: self.spread,
            names: self.names,
            named: self.named,
            lists: self.lists,
            piece: self.piece,
        }
    }
}
