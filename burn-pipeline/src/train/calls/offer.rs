//! The two commands that replace a stage's module on all ranks: made and kept aside, then adopted or dropped.
//!
//! See [`replace`](super::replace), which gives them.

use crate::execute::ExecuteError;
use crate::link::Activity;
use crate::stage::{NamedParameter, Offered, ReplaceError};
use crate::tensor_parallel::TensorGroup;
use crate::train::context::StageContext;
use crate::train::control::{Call, Command, exchange_facts, gather_results};
use crate::train::facts::StageFacts;
use crate::train::shared::Sharing;
use crate::train::step::{Rank, caught};
use burn::module::ParamId;
use burn_pipeline_plan::cost::Partition;
use burn_pipeline_plan::plan::StageId;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RankOffer {
    /// The parameters of each copy that the rank holds, as text.
    pub(super) copies: Vec<String>,
    /// Parameters that the old module does not have or does not train, except declared ties: id and path.
    fresh: Vec<(ParamId, String)>,
    /// The parameters of the rank's other stages.
    others: Vec<ParamId>,
}

/// Checks that the offers of all ranks fit together.
pub(super) fn all_fit(offers: &[RankOffer]) -> Result<(), ReplaceError> {
    let copies: Vec<&String> = offers.iter().flat_map(|offer| &offer.copies).collect();
    if let [first, rest @ ..] = copies.as_slice()
        && let Some(other) = rest.iter().find(|other| *other != first)
    {
        return Err(ReplaceError::Unlike { one: (*first).clone(), other: (*other).clone() });
    }
    let others: BTreeSet<ParamId> = offers.iter().flat_map(|offer| offer.others.iter().copied()).collect();
    match offers.iter().flat_map(|offer| &offer.fresh).find(|(id, _)| others.contains(id)) {
        Some((_, path)) => Err(ReplaceError::Elsewhere { path: path.clone() }),
        None => Ok(()),
    }
}

/// Makes a [`Change`] or a [`LayerChange`] of the caller's function, for a copy of the stage.
pub(super) type Make = Arc<dyn Fn(&StageContext) -> Box<dyn Any> + Send + Sync>;

/// Makes a stage's new module and keeps it aside.
pub(super) struct Offer {
    pub(super) stage: usize,
    /// The type of the module, as text.
    pub(super) wanted: &'static str,
    pub(super) make: Make,
    /// The current cut of the layers.
    pub(super) cut: Option<Partition>,
}

impl Command for Offer {
    type Reply = Result<RankOffer, ReplaceError>;
    const NAME: &'static str = "replacing a stage's module";
    const RUNS_ON_WEIGHTS: bool = true;

    fn call(&self) -> Call {
        Call::Shared(format!("{} (stage {}, a `{}`)", Self::NAME, self.stage, self.wanted))
    }

    fn run(&self, rank: &mut Rank, _: Instant) -> Result<Self::Reply, ExecuteError> {
        let mut offer = RankOffer { copies: Vec::new(), fresh: Vec::new(), others: Vec::new() };
        let stages: Vec<StageId> = rank.executor.stages().keys().copied().collect();
        for stage in stages {
            if stage.index() != self.stage {
                let held = rank.executor.stages().get(&stage);
                offer.others.extend(held.iter().flat_map(|held| held.parameters()));
                continue;
            }
            match self.offer(rank, stage) {
                Ok(Some(offered)) => offer.add(&offered, &rank.sharing),
                Ok(None) => {}
                Err(refused) => return Ok(Err(refused)),
            }
        }
        Ok(Ok(offer))
    }

    fn exchange(&self, rank: &mut Rank, own: Self::Reply) -> Result<Vec<Self::Reply>, ExecuteError> {
        gather_results(rank, own, |rank, message| ReplaceError::Rank { rank, message })
    }
}

impl Offer {
    /// Makes one copy's offer; `None` if its module has another type.
    fn offer(&self, rank: &mut Rank, stage: StageId) -> Result<Option<Offered>, ReplaceError> {
        if rank.executor.group.is_sharded(stage) {
            return Err(ReplaceError::Sharded);
        }
        let (number, stages, device) = (rank.number(), rank.placement.stages(), rank.executor.device().clone());
        let (index, cut) = (self.stage, self.cut.clone());
        let (group, replicas) = (TensorGroup::alone(), TensorGroup::alone());
        let at = StageContext { index, stages, rank: number, device: device.clone(), cut, group, replicas };
        rank.executor.link().set_activity(Activity::Building(stage));
        let change = (self.make)(&at);
        let Some(held) = rank.executor.stages().get_mut(&stage) else { return Ok(None) };
        let made = caught(number, || Self::NAME.to_owned(), || Ok(held.offer_module(change.as_ref(), &device)));
        let offered = made.map_err(|panic| match panic {
            ExecuteError::RankPanic { message, .. } => ReplaceError::Panic { message },
            other => ReplaceError::Panic { message: other.to_string() },
        })??;
        let changed = offered.as_ref().and_then(|offered| rank.sharing.changed_by(offered));
        changed.map_or(Ok(offered), |path| Err(ReplaceError::Shared { path }))
    }
}

impl RankOffer {
    fn add(&mut self, offered: &Offered, sharing: &Sharing) {
        let described = |p: &NamedParameter| {
            let trained = if p.trainable { "trained" } else { "frozen" };
            format!("`{}` {:?} of {:?}, {trained}", p.path, p.shape, p.dtype)
        };
        let floats = offered.after.iter().map(described);
        self.copies.push(floats.chain(offered.buffers.iter().cloned()).collect::<Vec<_>>().join("; "));
        let untied = offered.fresh().filter(|fresh| !sharing.declares(&fresh.path));
        self.fresh.extend(untied.map(|fresh| (fresh.id, fresh.path.clone())));
    }
}

/// Adopts the new module, or drops it.
pub(super) struct Finish {
    pub(super) stage: usize,
    pub(super) adopt: bool,
}

impl Command for Finish {
    type Reply = Vec<StageFacts>;
    const NAME: &'static str = "ending the replacement of a module";
    const RUNS_ON_WEIGHTS: bool = true;

    fn run(&self, rank: &mut Rank, _: Instant) -> Result<Self::Reply, ExecuteError> {
        let index = self.stage;
        if self.adopt {
            rank.changes_weights = true;
            rank.sharing.replaced = true;
        }
        for (_, held) in rank.executor.stages().iter_mut().filter(|(stage, _)| stage.index() == index) {
            if self.adopt { held.adopt_module() } else { held.withdraw_module() }
        }
        if !self.adopt {
            return Ok(Vec::new());
        }
        rank.equalize()?;
        let stages = rank.executor.stages().iter().filter(|(stage, _)| stage.index() == index);
        Ok(stages.map(|(&stage, held)| StageFacts::of(stage, held.as_ref())).collect())
    }

    fn exchange(&self, rank: &mut Rank, own: Self::Reply) -> Result<Vec<Self::Reply>, ExecuteError> {
        let (timeout, placement) = (rank.executor.timeout(), rank.placement.clone());
        Ok(vec![exchange_facts(rank.executor.link(), own, &placement, timeout)?])
    }
}
