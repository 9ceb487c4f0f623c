//! Reads engines, modules, weights and gradients from the ranks.

use crate::data_parallel::ReplicaGroup;
use crate::execute::ExecuteError;
use crate::payload::AnyTensor;
use crate::stage::{EngineReport, ErasedStage, NamedWeight, Stage};
use crate::tensor_parallel::Holders;
use crate::train::control::{Call, Command, gather_tensors};
use crate::train::error::PipelineError;
use crate::train::non_finite::NonFinite;
use crate::train::pipeline::Pipeline;
use crate::train::step::{Rank, caught};
use burn::module::ParamId;
use burn_pipeline_plan::plan::StageId;
use std::any::{Any, type_name};
use std::time::Instant;

/// A value for each of some stages.
type OfStages<T> = Vec<(StageId, T)>;

impl Pipeline {
    /// Returns how each stage's forward and backward run, and why, in model order. Whether a stage can be captured is
    /// known only after it has run. When ranks are processes, it returns this process's stages.
    ///
    /// Print [`EngineReport::captured`] and [`EngineReport::reason`]. `{:?}` of a report has the number of programs;
    /// print a program for its operations.
    ///
    /// # Errors
    /// Same as [`Pipeline::step`].
    pub fn engines(&mut self) -> Result<Vec<(StageId, EngineReport)>, PipelineError> {
        Ok(in_model_order(self.ask(Engines)?))
    }

    /// Returns a copy of the module of one stage. For a tensor-parallel stage this is the first member's module, with
    /// its pieces. When ranks are processes, only the process that holds the stage has it; if parameters are sharded,
    /// all make the call.
    ///
    /// # Errors
    /// Returns [`PipelineError::NoSuchModule`] if the stage is not an `M`. Also fails if a rank does not respond.
    pub fn module<M: Stage>(&mut self, stage: usize) -> Result<M, PipelineError> {
        let sharded = self.stages.facts.iter().any(|facts| facts.sharded);
        let modules = self.ask(Module { stage, sharded })?.into_iter().flatten();
        // The copy is in an `Option`, from which it can be moved out of the box.
        let module = modules.filter_map(|module| module.downcast::<Option<M>>().ok()).find_map(|module| *module);
        module.ok_or(PipelineError::NoSuchModule { stage, wanted: type_name::<M>() })
    }

    /// Returns the weights: one list per stage, in model order of stages and parameters. A parameter with several paths
    /// in a stage comes once. A vocabulary-parallel embedding and head follow, with one list each
    /// ([`Builder::vocabulary`](crate::Builder::vocabulary)).
    ///
    /// # Errors
    /// Same as [`Pipeline::step`].
    pub fn weights(&mut self) -> Result<Vec<Vec<AnyTensor>>, PipelineError> {
        let weights = first_route(self.ask(Weights { floats: true, merged: false })?).into_iter();
        Ok(weights.map(|stage| stage.into_iter().map(|weight| weight.value).collect()).collect())
    }

    /// Returns all parameters and buffers with their names in the model: one list per stage, in model order. When ranks
    /// are processes, all make the call, and each gets all of them.
    ///
    /// # Errors
    /// Same as [`Pipeline::step`].
    pub fn named_weights(&mut self) -> Result<Vec<Vec<NamedWeight>>, PipelineError> {
        Ok(first_route(self.ask(Weights { floats: false, merged: false })?))
    }

    /// The same with adapters added to the weights that they adapt.
    pub(crate) fn merged_weights(&mut self) -> Result<Vec<Vec<NamedWeight>>, PipelineError> {
        Ok(first_route(self.ask(Weights { floats: false, merged: true })?))
    }

    /// Takes the gradients accumulated since the last step, scaled by the loss contract and clipped, as the optimizer
    /// would get them: one list per stage, in model order of stages and parameters. If the step would be skipped
    /// ([`OnNonFinite::Skip`](crate::train::OnNonFinite::Skip), or an overflow at this loss scale), no parameter has
    /// one.
    ///
    /// # Errors
    /// Same as [`Pipeline::step`].
    pub fn take_gradients(&mut self) -> Result<Vec<Vec<Option<AnyTensor>>>, PipelineError> {
        let (gradients, odd): (Vec<_>, Vec<_>) = self.ask(TakeGradients)?.into_iter().unzip();
        self.training.gradients_gone();
        let odd = odd.iter().flatten().next();
        match self.overflows(odd) {
            true => {
                let factor = self.training.scaled().factor;
                tracing::info!(factor, "the gradients are dropped, since one overflowed at this loss scale");
                self.training.took_overflow();
            }
            false => self.refuse_non_finite(odd)?,
        }
        Ok(first_route(gradients))
    }
}

/// The stages of all ranks in model order, each once, because data-parallel replicas are equal.
pub(super) fn in_model_order<T>(replies: Vec<OfStages<T>>) -> OfStages<T> {
    let mut stages: OfStages<T> = replies.into_iter().flatten().collect();
    stages.sort_by_key(|(stage, _)| *stage);
    stages.dedup_by_key(|(stage, _)| *stage);
    stages
}

/// The same, for the first route of a bidirectional placement only; the second route is equal.
fn first_route<T>(replies: Vec<OfStages<T>>) -> Vec<T> {
    let stages = in_model_order(replies).into_iter().filter(|(stage, _)| stage.route() == 0);
    stages.map(|(_, value)| value).collect()
}

/// Returns `read` of each stage, on the rank that answers for the stage: its first holder, in the first data-parallel
/// replica. All members of a tensor-parallel group call `read`, with all holders, and the answering rank gets the
/// joined pieces.
fn of_stages<T>(
    rank: &mut Rank,
    read: impl Fn(&mut dyn ErasedStage, Holders<'_>) -> T,
) -> Result<OfStages<T>, ExecuteError> {
    let (number, groups) = (rank.number(), rank.executor.groups().clone());
    let stages = rank.executor.stages();
    let of_stage = |(&stage, held): (&StageId, &mut Box<dyn ErasedStage>)| {
        let holders = groups.of(stage);
        holders.joins(held.parameters()).then(|| (stage, read(held.as_mut(), holders)))
    };
    let join = || Ok(stages.iter_mut().filter_map(of_stage).collect());
    let joined: OfStages<T> = caught(number, || "joining pieces of a group".to_owned(), join)?;
    Ok(joined.into_iter().filter(|(stage, _)| rank.answers_for(*stage)).collect())
}

struct Engines;

impl Command for Engines {
    type Reply = OfStages<EngineReport>;
    const NAME: &'static str = "reading the stages' engines";

    fn call(&self) -> Call {
        Call::Local
    }

    fn run(&self, rank: &mut Rank, _: Instant) -> Result<Self::Reply, ExecuteError> {
        let placement = rank.placement.clone();
        let stages = rank.executor.stages().iter().filter(|(stage, _)| placement.contains(**stage));
        Ok(stages.map(|(&stage, held)| (stage, held.engine().report())).collect())
    }
}

/// Reads the module of one stage, whose type the caller knows.
struct Module {
    stage: usize,
    /// True if parameters of any stage are sharded, the same on all ranks.
    sharded: bool,
}

impl Command for Module {
    type Reply = Option<Box<dyn Any + Send>>;
    const NAME: &'static str = "reading a stage's module";

    fn call(&self) -> Call {
        match self.sharded {
            // All replicas give their shards.
            true => Call::Shared(format!("{} ({})", Self::NAME, self.stage)),
            false => Call::Local,
        }
    }

    fn run(&self, rank: &mut Rank, _: Instant) -> Result<Self::Reply, ExecuteError> {
        let stage = StageId::new(self.stage);
        // Cloning the user's type may run user code.
        rank.with_whole_weights(Self::NAME, |rank| Ok(rank.executor.stages().get(&stage).map(|held| held.module())))
    }
}

/// Takes the gradients as the optimizer would get them.
struct TakeGradients;

impl Command for TakeGradients {
    type Reply = (OfStages<Vec<Option<AnyTensor>>>, Option<NonFinite>);
    const NAME: &'static str = "taking the gradients";
    const GATHERS: bool = true;
    const RUNS_ON_WEIGHTS: bool = true;

    fn run(&self, rank: &mut Rank, _: Instant) -> Result<Self::Reply, ExecuteError> {
        let odd = rank.finish_gradients()?.non_finite;
        if odd.is_some() {
            rank.executor.stages().values_mut().for_each(|stage| stage.gradients().clear());
        }
        rank.executor.exchanging(None, ReplicaGroup::gather_gradients)?;
        let gradients = of_stages(rank, |stage, holders| {
            let parameters = stage.parameters().into_iter();
            parameters.map(|id| stage.gradients().get(id).cloned().map(|own| holders.whole(id, own))).collect()
        })?;
        rank.forget();
        Ok((gradients, odd))
    }

    fn exchange(&self, rank: &mut Rank, (own, odd): Self::Reply) -> Result<Vec<Self::Reply>, ExecuteError> {
        Ok(vec![(gather_tensors(rank, own)?, odd)])
    }
}

/// Reads parameters and buffers.
struct Weights {
    /// True for float ones alone, which every link can send.
    floats: bool,
    /// True if adapters are added to the weights that they adapt.
    merged: bool,
}

impl Command for Weights {
    type Reply = OfStages<Vec<NamedWeight>>;
    const NAME: &'static str = "reading the weights";

    fn call(&self) -> Call {
        let Self { floats, merged } = self;
        Call::Shared(format!("{} (floats alone: {floats}, adapters merged: {merged})", Self::NAME))
    }

    fn run(&self, rank: &mut Rank, _: Instant) -> Result<Self::Reply, ExecuteError> {
        let weights = |stage: &mut dyn ErasedStage, holders: Holders<'_>| {
            let whole = |weight: NamedWeight| NamedWeight {
                value: holders.whole(weight.id, weight.value).unshared(),
                ..weight
            };
            let own = if self.merged { stage.merged_weights() } else { stage.named_weights() };
            let read = own.into_iter().filter(|weight| !self.floats || weight.value.dtype().is_float());
            read.map(whole).collect()
        };
        rank.with_whole_weights(Self::NAME, |rank| of_stages(rank, weights))
    }

    fn exchange(&self, rank: &mut Rank, own: Self::Reply) -> Result<Vec<Self::Reply>, ExecuteError> {
        type Sent = (i64, String, Vec<String>, Vec<String>, AnyTensor);
        let sent = |NamedWeight { id, path, names, containers, value }: NamedWeight| -> Sent {
            (id.val().cast_signed(), path, names, containers, value)
        };
        let received = |(id, path, names, containers, value): Sent| {
            let id = ParamId::from(id.cast_unsigned());
            NamedWeight { id, path, names, containers, value }
        };
        let own = own.into_iter().map(|(stage, weights)| (stage, weights.into_iter().map(sent).collect::<Vec<_>>()));
        let all = gather_tensors(rank, own.collect())?.into_iter();
        Ok(vec![all.map(|(stage, weights)| (stage, weights.into_iter().map(received).collect())).collect()])
    }
}
