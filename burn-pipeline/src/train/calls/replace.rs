//! Replaces a stage's module: for a head of another size, to freeze or unfreeze layers, to add an adapter.
//!
//! Guarantees: either every copy of the stage is replaced, and later steps, evaluations and checkpoints equal those of
//! a single-device loop that replaces the same layers between the same steps; or the stage keeps its module, and the
//! pipeline is unchanged.
//!
//! 1. Every rank that holds the stage makes the new module and keeps it aside ([`Offer`]).
//! 2. The caller checks that all offers fit: copies are alike, and no new parameter is also on another stage.
//! 3. Every rank adopts its new module, or drops it ([`Finish`]); copies take the first one's weights, as at the start.
//!
//! The new module comes from a function that every rank runs on its own copy, because the whole model exists nowhere
//! and modules do not cross links.

use crate::cost::Partition;
use crate::execute::ExecuteError;
use crate::link::Activity;
use crate::plan::StageId;
use crate::stage::{Change, NamedParameter, Offered, ReplaceError, Stage};
use crate::tensor_parallel::TensorGroup;
use crate::train::context::StageContext;
use crate::train::control::{Call, Command, exchange_facts, gather_results};
use crate::train::error::PipelineError;
use crate::train::facts::StageFacts;
use crate::train::features::Feature;
use crate::train::pipeline::Pipeline;
use crate::train::step::{Rank, caught};
use serde::{Deserialize, Serialize};
use std::any::type_name;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

impl Pipeline {
    /// Replaces the module of one stage, between two steps, by the result of `change` on a copy of it. `change` runs on
    /// every rank that holds the stage (both copies of a bidirectional placement, all data-parallel replicas); all
    /// copies then take the first one's weights. When ranks are processes, all make the call.
    ///
    /// The optimizer keeps its state of parameters whose ids stay, and starts anew with new parameters, which must be
    /// on [`StageContext::device`]. The stage's loss, names and options stay as they were. A checkpoint saved from now
    /// on fits pipelines with the new module. An [`AutoPipeline`](crate::train::AutoPipeline) no longer switches.
    ///
    /// ```
    /// # use burn::module::Module;
    /// # use burn::nn::{Linear, LinearConfig};
    /// # use burn::optim::SgdConfig;
    /// # use burn::tensor::{Device, Tensor};
    /// # use burn_pipeline::{Batch, Pipeline, Size, Stage, StageBox, StageContext};
    /// # #[derive(Module, Debug)]
    /// # struct Part { body: Linear, head: Option<Linear> }
    /// # impl Stage for Part {
    /// #     type Input = Tensor<2>;
    /// #     type Extra = ();
    /// #     type Output = Tensor<2>;
    /// #     fn forward(&self, x: Tensor<2>, _: ()) -> Tensor<2> {
    /// #         let x = self.body.forward(x);
    /// #         match &self.head { Some(head) => head.forward(x), None => x }
    /// #     }
    /// # }
    /// # fn stage(at: &StageContext) -> StageBox {
    /// #     let linear = || LinearConfig::new(3, 3).init(&at.device);
    /// #     let part = Part { body: linear(), head: at.is_last().then(linear) };
    /// #     match at.is_last() {
    /// #         false => StageBox::new(part),
    /// #         true => StageBox::with_loss(part, |y: Tensor<2>, t: Tensor<2>| (y - t).square().mean()),
    /// #     }
    /// # }
    /// # let builder = Pipeline::builder().schedule("1F1B", Size::new(2, 2)).stages(stage);
    /// # let builder = builder.devices(vec![Device::flex()]);
    /// # let mut pipeline = builder.optimizer(|| SgdConfig::new().init()).build()?;
    /// # let batch = |classes: usize| {
    /// #     let ones = |width| Tensor::<2>::ones([4, width], &Device::flex());
    /// #     Batch::new(ones(3)).target(ones(classes))
    /// # };
    /// pipeline.step(batch(3), 0.1)?;
    /// // Five classes from here on.
    /// pipeline.replace_module(1, |part: Part, at: &StageContext| {
    ///     Part { head: Some(LinearConfig::new(3, 5).init(&at.device)), ..part }
    /// })?;
    /// pipeline.step(batch(5), 0.1)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`PipelineError::NoSuchModule`] if there is no such stage or its module is not an `M`, and
    /// [`PipelineError::Replace`] if the new module does not fit; nothing was changed. Returns [`PipelineError::Plan`],
    /// and training is refused from then on, if the module was replaced, but the pipeline was given a plan without the
    /// backward of a stage that now trains. If a rank fails, same as [`Pipeline::step`].
    pub fn replace_module<M: Stage>(
        &mut self,
        stage: usize,
        change: impl Fn(M, &StageContext) -> M + Send + Sync + 'static,
    ) -> Result<(), PipelineError> {
        self.goes_with(Feature::ReplaceModule)?;
        let refused = |source| PipelineError::Replace { stage, source };
        let admitted = if self.training.is_mid_step() { Err(ReplaceError::GradientsWait) } else { Ok(()) };
        self.admit(admitted.map_err(refused))?;
        let offers = self.ask(Offer { stage, change: Arc::new(change), cut: self.cut.clone() })?;
        let offers: Result<Vec<RankOffer>, ReplaceError> = offers.into_iter().collect();
        let fits =
            offers.map_err(refused).and_then(|offers| match offers.iter().any(|offer| !offer.copies.is_empty()) {
                true => all_fit(&offers).map_err(refused),
                false => Err(PipelineError::NoSuchModule { stage, wanted: type_name::<M>() }),
            });
        let facts = self.ask(Finish { stage, adopt: fits.is_ok() })?;
        fits?;
        self.stages = self.stages.renewed(facts.concat());
        self.learns_metadata = self.wants_metadata;
        self.is_as_built = false;
        let planned = self.plans.train_from(self.stages.first_trained());
        planned.map_err(|error| PipelineError::Plan(Box::new(error)))
    }
}

/// One rank's offer.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RankOffer {
    /// The parameters of each copy that the rank holds, as text.
    copies: Vec<String>,
    /// Parameters that the old module does not have: id and path.
    fresh: Vec<(u64, String)>,
    /// The parameters of the rank's other stages.
    others: Vec<u64>,
}

/// Checks that the offers of all ranks fit together.
fn all_fit(offers: &[RankOffer]) -> Result<(), ReplaceError> {
    let copies: Vec<&String> = offers.iter().flat_map(|offer| &offer.copies).collect();
    if let [first, rest @ ..] = copies.as_slice()
        && let Some(other) = rest.iter().find(|other| *other != first)
    {
        return Err(ReplaceError::Unlike { one: (*first).clone(), other: (*other).clone() });
    }
    let others: BTreeSet<u64> = offers.iter().flat_map(|offer| offer.others.iter().copied()).collect();
    match offers.iter().flat_map(|offer| &offer.fresh).find(|(id, _)| others.contains(id)) {
        Some((_, path)) => Err(ReplaceError::Elsewhere { path: path.clone() }),
        None => Ok(()),
    }
}

/// The caller's function.
type Make<M> = Arc<dyn Fn(M, &StageContext) -> M + Send + Sync>;

/// Makes a stage's new module and keeps it aside.
struct Offer<M> {
    stage: usize,
    change: Make<M>,
    /// The current cut of the layers.
    cut: Option<Partition>,
}

impl<M: Stage> Command for Offer<M> {
    type Reply = Result<RankOffer, ReplaceError>;
    const NAME: &'static str = "replacing a stage's module";
    const RUNS_ON_WEIGHTS: bool = true;

    fn call(&self) -> Call {
        Call::Shared(format!("{} (stage {}, a `{}`)", Self::NAME, self.stage, type_name::<M>()))
    }

    fn run(&self, rank: &mut Rank, _: Instant) -> Result<Self::Reply, ExecuteError> {
        let mut offer = RankOffer { copies: Vec::new(), fresh: Vec::new(), others: Vec::new() };
        let stages: Vec<StageId> = rank.executor().stages().keys().copied().collect();
        for stage in stages {
            if stage.index() != self.stage {
                let held = rank.executor().stages().get(&stage);
                offer.others.extend(held.iter().flat_map(|held| held.parameters()).map(|id| id.val()));
                continue;
            }
            match self.offer(rank, stage) {
                Ok(Some(offered)) => offer.add(&offered),
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

impl<M: Stage> Offer<M> {
    /// Makes one copy's offer; `None` if its module has another type.
    fn offer(&self, rank: &mut Rank, stage: StageId) -> Result<Option<Offered>, ReplaceError> {
        if rank.executor().shards(stage) {
            return Err(ReplaceError::Sharded);
        }
        let (number, stages, device) = (rank.number(), rank.placement().stages(), rank.executor().device().clone());
        let (index, cut) = (self.stage, self.cut.clone());
        let (group, replicas) = (TensorGroup::alone(), TensorGroup::alone());
        let at = StageContext { index, stages, rank: number, device: device.clone(), cut, group, replicas };
        rank.executor().link().set_activity(Activity::Building(stage));
        let make = self.change.clone();
        let change = Change::<M>(Box::new(move |module| make(module, &at)));
        let Some(held) = rank.executor().stages().get_mut(&stage) else { return Ok(None) };
        let made = caught(number, || Self::NAME.to_owned(), || Ok(held.offer_module(&change, &device)));
        let offered = made.map_err(|panic| match panic {
            ExecuteError::RankPanic { message, .. } => ReplaceError::Panic { message },
            other => ReplaceError::Panic { message: other.to_string() },
        })??;
        let changed = offered.as_ref().and_then(|offered| rank.sharing().changed_by(offered));
        changed.map_or(Ok(offered), |path| Err(ReplaceError::Shared { path }))
    }
}

impl RankOffer {
    fn add(&mut self, offered: &Offered) {
        let described = |p: &NamedParameter| {
            let trained = if p.trainable { "trained" } else { "frozen" };
            format!("`{}` {:?} of {:?}, {trained}", p.path, p.shape, p.dtype)
        };
        self.copies.push(offered.after.iter().map(described).collect::<Vec<_>>().join("; "));
        self.fresh.extend(offered.fresh().map(|fresh| (fresh.id.val(), fresh.path.clone())));
    }
}

/// Adopts the new module, or drops it.
struct Finish {
    stage: usize,
    adopt: bool,
}

impl Command for Finish {
    type Reply = Vec<StageFacts>;
    const NAME: &'static str = "ending the replacement of a module";
    const RUNS_ON_WEIGHTS: bool = true;

    fn run(&self, rank: &mut Rank, _: Instant) -> Result<Self::Reply, ExecuteError> {
        let index = self.stage;
        if self.adopt {
            rank.change_weights();
        }
        for (_, held) in rank.executor().stages().iter_mut().filter(|(stage, _)| stage.index() == index) {
            if self.adopt { held.adopt_module() } else { held.withdraw_module() }
        }
        if !self.adopt {
            return Ok(Vec::new());
        }
        rank.equalize()?;
        let stages = rank.executor().stages().iter().filter(|(stage, _)| stage.index() == index);
        Ok(stages.map(|(&stage, held)| StageFacts::of(stage, held.as_ref(), false)).collect())
    }

    fn exchange(&self, rank: &mut Rank, own: Self::Reply) -> Result<Vec<Self::Reply>, ExecuteError> {
        let (timeout, placement) = (rank.executor().timeout(), rank.placement().clone());
        Ok(vec![exchange_facts(rank.executor().link(), own, &placement, timeout)?])
    }
}
