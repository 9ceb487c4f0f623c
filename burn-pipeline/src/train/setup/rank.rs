//! Builds one rank on its thread.
//!
//! 1. Ranks in processes compare their jobs, and learn whether any of them wants outputs of steps. If the link has its
//!    own collectives, it creates the tensor-parallel groups.
//! 2. The factory makes the rank's stages, one after the other. Then its pieces of a parallel vocabulary are cut.
//! 3. Ranks in processes exchange the facts of their stages. Two ranks that hold the same stage must hold the same
//!    parameters, and all ranks must have optimizers that do the same.
//! 4. The rank starts: equal weights, tied parameters, shards ([`Rank::start`]).

use super::builder::Builder;
use crate::data_parallel::Stages;
use crate::execute::{ExecuteError, Executor, RunOptions};
use crate::link::{Activity, Link, SharedLink};
use crate::payload::{AnyTensor, SpecMismatch, StageMetadata, computes_in};
use crate::ranks::Grid;
use crate::stage::{ErasedStage, MadeUpSteps, Matmuls, Members, NamedWeight, StageError, made_up_names};
use crate::tensor_parallel::{Holders, TensorGroup};
use crate::train::context::{StageContext, asking};
use crate::train::control::{Job, agree_on_job, agree_on_optimizer, agree_on_parameters, exchange_facts, gather_all};
use crate::train::facts::StageFacts;
use crate::train::plans::split_stages;
use crate::train::shared::SharedReport;
use crate::train::step::{Rank, Settings, caught};
use crate::vocabulary::{Piece, StageGroups, Vocabulary, VocabularyGroup};
use burn::module::ParamId;
use burn::tensor::Device;
use burn_pipeline_plan::plan::{CheckedPlan, Op, Placement, StageId};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

/// The inputs from which all ranks of this process are built.
pub(crate) struct Blueprint {
    pub(crate) builder: Builder,
    pub(crate) plan: Arc<CheckedPlan>,
    /// The settings that all ranks must share, if they are processes.
    pub(crate) job: Option<Job>,
    /// The predicted peak bytes of the plan, for each pipeline rank.
    pub(crate) predicted: Vec<u64>,
}

/// A rank's own stages and pieces, their facts, and descriptions of their parameters.
#[derive(Default)]
pub(crate) struct Made {
    pub(super) stages: Stages,
    facts: Vec<StageFacts>,
    parameters: Vec<(usize, String)>,
}

/// A rank, and its facts of all stages: of this process, or of all processes.
pub(super) type Built = (Rank, (Vec<StageFacts>, Vec<SharedReport>));

impl Made {
    /// Adds a stage or a piece.
    fn add(
        &mut self,
        rank: usize,
        device: &Device,
        facts: StageFacts,
        held: Box<dyn ErasedStage>,
        group: &TensorGroup,
    ) -> Result<(), ExecuteError> {
        let stage = facts.stage;
        let (weights, copies) = (held.named_weights(), held.computed().into_iter().collect::<HashMap<_, _>>());
        refuse_types(rank, stage, device, &weights)?;
        let copy = |weight: NamedWeight| copies.get(&weight.id).cloned().map(|value| NamedWeight { value, ..weight });
        refuse_types(rank, stage, device, &weights.into_iter().filter_map(copy).collect::<Vec<_>>())?;
        refuse_gradients(rank, stage, held.options().declared.as_ref())?;
        // Those of members, and of replicas over which weights are cut, may differ.
        let alike = group.size() < 2 && !held.options().spread;
        let buffers = if alike { held.buffers() } else { Vec::new() };
        let values: Vec<_> = held.weights().into_iter().chain(buffers).collect();
        self.parameters.push((stage.index(), described(&values, group)));
        self.facts.push(facts);
        self.stages.insert(stage, held);
        Ok(())
    }
}

/// Refuses declared gradients that do not fit their tensors.
fn refuse_gradients(rank: usize, stage: StageId, declared: Option<&StageMetadata>) -> Result<(), ExecuteError> {
    let Some((port, SpecMismatch { tensor, expected, got })) = declared.and_then(StageMetadata::unfit_gradient) else {
        return Ok(());
    };
    let source = StageError::DeclaredGradient { port, tensor, expected, got };
    Err(ExecuteError::Stage { rank, stage, microbatch: 0, op: Op::Backward, source })
}

impl Blueprint {
    /// Builds the rank at this end of the link.
    pub(super) fn build(&self, link: Box<dyn Link>, device: Device) -> Result<Built, ExecuteError> {
        let builder = &self.builder;
        let mut link = SharedLink::new(link);
        let grid = self.grid(&link);
        // Abort while the link exists: a rank that only closed it would give no reason.
        let agreed = self.agree(&mut link, &grid).inspect_err(|error| link.abort(error.to_string()));
        let (outputs, by_link) = agreed?;
        let groups = self.groups(&grid, &link, by_link);
        let made = self.stages(&mut link, &device, &groups, outputs);
        let (stages, facts) = made.inspect_err(|error| link.abort(error.to_string()))?;
        link.set_activity(Activity::Idle);
        let options = RunOptions {
            timeout: builder.timeout,
            tuning: builder.tuning,
            predicted: self.predicted.get(grid.pipeline_rank()).copied(),
            input_gradients: builder.input_gradients,
        };
        let settings = Settings { outputs, ..builder.settings };
        let executor = Executor::new(link, stages, device, options, grid, groups);
        let rank = Rank::start(executor, self.placement().clone(), settings, &builder.shared, builder.sharded)?;
        let shared = rank.sharing.reports.clone();
        Ok((rank, (facts, shared)))
    }

    pub(crate) fn placement(&self) -> &Placement {
        self.plan.plan().placement()
    }

    /// The place of the rank at this end of the link.
    fn grid(&self, link: &dyn Link) -> Grid {
        Grid::new(link.rank(), self.builder.replicas, self.builder.members.clone())
    }

    /// Returns whether any process wants outputs of steps, and whether the link runs the collectives of tensor-parallel
    /// groups: step 1 of the header.
    fn agree(&self, link: &mut SharedLink, grid: &Grid) -> Result<(bool, bool), ExecuteError> {
        let Self { builder, job, .. } = self;
        let (rank, mut outputs) = (link.rank(), builder.settings.outputs);
        if let Some(job) = job {
            agree_on_job(link, job, builder.timeout)?;
            outputs = gather_all(link, &outputs, builder.timeout)?.contains(&true);
        }
        if grid.largest_group() < 2 {
            return Ok((outputs, false));
        }
        let group: Vec<usize> = grid.member_ranks().collect();
        let formed = link.with_collectives(|collectives| collectives.form(&group, Instant::now() + builder.timeout));
        let formed = formed.transpose().map_err(|source| ExecuteError::Link { rank, task: None, source })?;
        Ok((outputs, formed.is_some()))
    }

    /// The groups of tensor-parallel members, vocabulary pieces and replicas, which share the rank's end of the link.
    /// `by_link` is true if the link runs the collectives of tensor-parallel groups.
    fn groups(&self, grid: &Grid, link: &SharedLink, by_link: bool) -> StageGroups {
        let Builder { replicas, timeout, ref vocabulary, .. } = self.builder;
        let (mut groups, members) = (StageGroups::default(), grid.member_ranks().len());
        if replicas > 1 {
            let group = TensorGroup::new(grid.replica(), grid.replica_ranks(), link.stage_end(), timeout);
            groups.replicas = group.of_replicas();
        }
        if members > 1 {
            let group = TensorGroup::new(grid.member(), grid.member_ranks(), link.stage_end(), timeout);
            groups.members = group.by_link(by_link);
        }
        if let Some(pieces) = vocabulary.as_ref().map(Vocabulary::pieces) {
            let ranks = (0..self.placement().ranks()).map(|rank| grid.rank_of(rank));
            let group = TensorGroup::new(grid.pipeline_rank(), ranks, link.stage_end(), timeout);
            groups.vocabulary = VocabularyGroup::new(group, &pieces, self.placement().stages());
        }
        groups
    }

    /// The rank's stages, and its facts of all stages: steps 2 and 3 of the header.
    fn stages(
        &self,
        link: &mut dyn Link,
        device: &Device,
        groups: &StageGroups,
        outputs: bool,
    ) -> Result<(Stages, Vec<StageFacts>), ExecuteError> {
        let made = self.make(link, device, groups, outputs)?;
        let (stages, facts) = self.facts(link, made)?;
        if self.job.is_some() {
            self.compare_optimizers(link, device, &facts)?;
        }
        Ok((stages, facts))
    }

    /// Compares the optimizers of all processes by their steps with the model's parameter names.
    fn compare_optimizers(
        &self,
        link: &mut dyn Link,
        device: &Device,
        facts: &[StageFacts],
    ) -> Result<(), ExecuteError> {
        let names: BTreeSet<&String> = facts.iter().flat_map(|facts| &facts.names).map(|(_, name)| name).collect();
        let names = made_up_names(&names.into_iter().cloned().collect::<Vec<_>>());
        let optimizer = self.builder.optimizers.as_ref();
        let own = caught(link.rank(), || "making an optimizer".to_owned(), || Ok(optimizer.map(|make| make())))?;
        link.set_activity(Activity::Gathering);
        agree_on_optimizer(link, &names, &MadeUpSteps::of(own, &names, device), self.builder.timeout)
    }

    /// Makes the rank's stages. The last stage keeps its outputs if they are wanted.
    pub(crate) fn make(
        &self,
        link: &mut dyn Link,
        device: &Device,
        groups: &StageGroups,
        outputs: bool,
    ) -> Result<Made, ExecuteError> {
        let (builder, placement) = (&self.builder, self.placement());
        let (mut made, rank) = (Made::default(), link.rank());
        for stage in placement.stages_of(self.grid(link).pipeline_rank()) {
            link.set_activity(Activity::Building(stage));
            let mut held = self.stage(rank, stage, device, groups, outputs)?;
            held.options_mut().sharded.get_or_insert(builder.sharded);
            made.add(rank, device, StageFacts::of(stage, held.as_ref()), held, &groups.members)?;
        }
        let vocabulary =
            builder.vocabulary.iter().flat_map(|layers| layers.pieces().into_iter().map(move |p| (layers, p)));
        for (layers, piece) in vocabulary {
            let stage = piece.stage(placement.stages());
            link.set_activity(Activity::Building(stage));
            let held = self.piece(rank, layers, piece, device, &groups.vocabulary)?;
            let facts = StageFacts::of_piece(piece, stage, held.as_ref());
            made.add(rank, device, facts, held, &groups.vocabulary.group)?;
        }
        Ok(made)
    }

    /// Makes a vocabulary-parallel layer and cuts the rank's piece from it.
    fn piece(
        &self,
        rank: usize,
        layers: &Vocabulary,
        piece: Piece,
        device: &Device,
        group: &VocabularyGroup,
    ) -> Result<Box<dyn ErasedStage>, ExecuteError> {
        let stage = piece.stage(self.placement().stages());
        let make = || layers.cut(piece, device, group).ok_or(ExecuteError::NoStage { rank, stage });
        let mut held = caught(rank, || format!("cutting its piece of the {piece}"), make)?;
        taken(rank, stage, held.as_ref())?;
        held.options_mut().precision = self.builder.precision.clone();
        held.prepare(self.builder.accumulation, self.builder.optimizers.as_ref().map(|make| make()));
        tracing::info!(rank, %piece, "piece of the vocabulary cut");
        Ok(held)
    }

    /// The stages, and the facts of all stages of all ranks of this process, or of all processes.
    pub(crate) fn facts(&self, link: &mut dyn Link, made: Made) -> Result<(Stages, Vec<StageFacts>), ExecuteError> {
        let (Made { stages, facts, parameters }, timeout) = (made, self.builder.timeout);
        if self.job.is_none() {
            return Ok((stages, facts));
        }
        // A rank that still builds is waited for longer; this one does not.
        link.set_activity(Activity::Gathering);
        agree_on_parameters(link.rank(), &gather_all(link, &parameters, timeout)?)?;
        Ok((stages, exchange_facts(link, facts, self.placement(), timeout)?))
    }

    /// Makes one stage. The last stage keeps its outputs if they are wanted.
    fn stage(
        &self,
        rank: usize,
        stage: StageId,
        device: &Device,
        groups: &StageGroups,
        outputs: bool,
    ) -> Result<Box<dyn ErasedStage>, ExecuteError> {
        let Self { builder, plan, .. } = self;
        let (group, replicas) = (groups.members.clone(), groups.replicas.clone());
        let (index, stages, cut) = (stage.index(), self.placement().stages(), builder.cut.clone());
        let context = StageContext { index, stages, rank, device: device.clone(), cut, group, replicas };
        let splits = split_stages(plan.plan()).contains(&stage);
        let make = || {
            let made = builder.make_stage(&context, splits, outputs, self.members(stage, groups));
            made.ok_or(ExecuteError::NoStage { rank, stage })
        };
        let held = caught(rank, || format!("building stage {stage}"), make)?;
        taken(rank, stage, held.as_ref())?;
        let captured = held.engine().report().captured;
        tracing::info!(rank, %stage, module = held.module_type(), captured, "stage built");
        Ok(held)
    }

    /// The comparison of a captured stage's collectives among its holders, if there are several.
    fn members(&self, stage: StageId, groups: &StageGroups) -> Option<Members> {
        let StageGroups { members, replicas, .. } = groups.clone();
        let (several, plan) = (members.size() > 1 || replicas.size() > 1, self.plan.clone());
        several.then(|| -> Members {
            Arc::new(move |recorded| Holders::new(&members, &replicas).compare(&plan, stage, recorded))
        })
    }
}

impl Builder {
    /// Makes a stage and chooses its engine. `splits` is true if the plan splits its backward, `outputs` if the last
    /// stage keeps its outputs; `members` compares a captured stage's collectives. `None` without a factory.
    pub(crate) fn make_stage(
        &self,
        context: &StageContext,
        splits: bool,
        outputs: bool,
        members: Option<Members>,
    ) -> Option<Box<dyn ErasedStage>> {
        let factory = self.factory.as_ref()?;
        let (made, layers) = asking(|| factory(context));
        let mut held = made.into_inner();
        let spread = context.replicas.cuts_any(held.weights().iter().map(|(id, _)| *id));
        let options = held.options_mut();
        options.layers = layers;
        (options.programs, options.record_every) = (Some(self.tuning.captured_programs), self.tuning.record_every);
        options.seeded = self.seed.is_some();
        (options.rounded, options.outputs) = (self.matmuls.detect(), outputs);
        options.precision = self.precision.clone();
        options.compile |= self.compile | (self.matmuls != Matmuls::F32);
        options.recompute |= self.recomputing.contains(&context.index);
        options.members = members;
        options.grouped = context.group.size() > 1;
        options.spread = spread;
        held.choose(self.split, splits, self.tuning.keep_outputs);
        held.prepare(self.accumulation, self.optimizers.as_ref().map(|make| make()));
        Some(held)
    }
}

/// Refuses a stage whose module holds parameters that stages do not support.
fn taken(rank: usize, stage: StageId, held: &dyn ErasedStage) -> Result<(), ExecuteError> {
    held.refused().map_or(Ok(()), |source| Err(ExecuteError::Module { rank, stage, source }))
}

/// Refuses weights of a float type that the device does not compute in: it may store them but compute wrong values.
fn refuse_types(rank: usize, stage: StageId, device: &Device, weights: &[NamedWeight]) -> Result<(), ExecuteError> {
    let float = weights.iter().filter(|weight| weight.value.dtype().is_float());
    float.map(|weight| (weight, weight.value.dtype())).try_for_each(|(weight, dtype)| {
        computes_in(device, dtype).map_err(|why| {
            let (name, device) = (weight.names.join(", ").into(), format!("{:?}", device.clone().inner()).into());
            ExecuteError::ElementType { rank, stage, name, dtype, device, why: why.into() }
        })
    })
}

/// Element types and shapes of the whole parameters, in visiting order.
fn described(weights: &[(ParamId, AnyTensor)], group: &TensorGroup) -> String {
    let described = weights
        .iter()
        .map(|(id, weight)| format!("{:?}{:?}", weight.dtype(), group.whole_shape(*id, weight.shape()).to_vec()));
    described.collect::<Vec<_>>().join(" ")
}
