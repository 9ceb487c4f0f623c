//! The plans of one pipeline: one for each number of microbatches used so far, lowered and checked once.
//!
//! Guarantees: all plans have one placement, because stages stay where they were built. Every plan was checked for the
//! transport that it runs on. Once it is known which stages train, plans have backwards only from the first of them on.

use super::replication::Replication;
use super::source::Source;
use super::vocabulary::VocabularyPass;
use crate::execute::ReplicaShare;
use crate::ranks::Grid;
use crate::train::error::BuildError;
use burn_pipeline_plan::plan::{CheckOptions, CheckedPlan, Op, Placement, Plan, SkipEdge, StageId};
use burn_pipeline_plan::schedule::ForwardOnly;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Plans {
    source: Source,
    pub(crate) skips: Vec<SkipEdge>,
    replication: Replication,
    vocabulary: VocabularyPass,
    pub(crate) placement: Placement,
    /// The first stage that trains; `None` until the stages are built.
    first_trained: Option<usize>,
    /// By whether they train, and by the number of microbatches of one replica.
    known: HashMap<(bool, usize), Arc<CheckedPlan>>,
}

impl Plans {
    /// Builds and checks the plan for the number of microbatches that the user chose.
    pub(crate) fn new(
        source: Source,
        declared: &[SkipEdge],
        replication: Replication,
        vocabulary: VocabularyPass,
    ) -> Result<Self, BuildError> {
        let (skips, microbatches) = (source.skips(declared), source.microbatches());
        let placement = source.plan(microbatches)?.placement().clone();
        let (known, first_trained) = (HashMap::new(), None);
        let mut plans = Self { source, skips, replication, vocabulary, placement, first_trained, known };
        let plan = plans.current()?;
        plans.replication.fits(&plans.placement, plan.plan().skips())?;
        Ok(plans)
    }

    /// Sets the first stage that trains, and builds the plan for the number of microbatches that the user chose anew.
    pub(crate) fn train_from(&mut self, first: usize) -> Result<(), BuildError> {
        if self.first_trained != Some(first) {
            self.first_trained = Some(first);
            self.known.retain(|&(trains, _), _| !trains);
        }
        self.current().map(drop)
    }

    /// The plans of the same ranks for other stages, with these skip edges.
    pub(crate) fn moved(&self, source: Source, skips: &[SkipEdge]) -> Result<Self, BuildError> {
        let plans = Self::new(source, skips, self.replication.clone(), self.vocabulary.clone())?;
        match (plans.placement.ranks(), self.placement.ranks()) {
            (ranks, linked) if ranks != linked => Err(BuildError::Ranks { ranks, linked }),
            _ => Ok(plans),
        }
    }

    /// These plans, for the stages that `running` runs; stages do not move.
    pub(crate) fn in_place_of(mut self, running: &Self) -> Result<Self, BuildError> {
        if self.placement != running.placement {
            return Err(BuildError::Moved { schedule: self.name(), microbatches: self.source.microbatches() });
        }
        running.first_trained.map_or(Ok(()), |first| self.train_from(first))?;
        Ok(self)
    }

    /// The first plan's name.
    pub(crate) fn name(&self) -> String {
        let trains = self.known.iter().find(|((trains, _), _)| *trains);
        trains.map(|(_, plan)| plan.plan().name().to_owned()).unwrap_or_default()
    }

    /// The number of microbatches of a whole batch, over all replicas.
    pub(crate) fn microbatches(&self) -> usize {
        self.source.microbatches() * self.replication.replicas
    }

    /// The number of ranks of all replicas and groups.
    pub(crate) fn ranks(&self) -> usize {
        self.replication.ranks(self.placement.ranks())
    }

    /// Returns true if a layer is vocabulary parallel.
    pub(crate) fn spread(&self) -> bool {
        !self.vocabulary.pieces.is_empty()
    }

    /// The size of the largest tensor-parallel group.
    pub(crate) fn members(&self) -> usize {
        self.replication.members.largest()
    }

    /// The training plan for the number of microbatches that the user chose.
    pub(crate) fn current(&mut self) -> Result<Arc<CheckedPlan>, BuildError> {
        self.checked(true, self.source.microbatches())
    }

    /// The plan that trains or evaluates this many microbatches on one replica.
    pub(crate) fn checked(&mut self, trains: bool, microbatches: usize) -> Result<Arc<CheckedPlan>, BuildError> {
        if let Some(plan) = self.known.get(&(trains, microbatches)) {
            return Ok(plan.clone());
        }
        let plan = check(if trains { self.training_plan(microbatches)? } else { self.evaluation_plan(microbatches)? })?;
        if plan.plan().placement() != &self.placement {
            return Err(BuildError::Moved { schedule: plan.plan().name().to_owned(), microbatches });
        }
        let plan = Arc::new(plan);
        self.known.insert((trains, microbatches), plan.clone());
        Ok(plan)
    }

    /// The lowered plan that trains this many microbatches.
    fn training_plan(&self, microbatches: usize) -> Result<Plan, BuildError> {
        let mut plan = self.vocabulary.of(self.source.plan(microbatches)?)?;
        if let Some(first) = self.first_trained {
            plan = plan.train_from(first)?;
        }
        if !self.skips.is_empty() {
            plan = plan.with_skips(self.skips.clone())?;
        }
        plan = self.replication.lower(&plan)?;
        if self.replication.replicas > 1 && plan.has_backward() {
            plan = plan.with_reduce_grad();
        }
        Ok(plan)
    }

    /// The lowered plan that evaluates this many microbatches, with forwards only.
    fn evaluation_plan(&self, microbatches: usize) -> Result<Plan, BuildError> {
        let counts = match self.placement.routes() {
            1 => vec![microbatches],
            _ => vec![microbatches.div_ceil(2), microbatches / 2],
        };
        let plan = self.vocabulary.of(ForwardOnly::over(self.placement.clone(), counts)?)?;
        self.replication.lower(&plan.with_skips(self.skips.clone())?)
    }

    /// The part of each replica when training or evaluating a batch of this many microbatches (at least one).
    pub(crate) fn parts(&mut self, trains: bool, microbatches: usize) -> Result<Parts, BuildError> {
        let replicas = self.replication.replicas;
        let shares = Grid::shares(microbatches, replicas);
        // Replicas can exchange gradients inside a row only if all run the same row.
        let same_plan = shares.iter().all(|(_, count)| *count == shares[0].1);
        let part = |(first, count): (usize, usize)| {
            // A replica without microbatches does not run its plan, so any plan will do.
            let plan = self.checked(trains, count.max(1)).map_err(|error| error.of_batch(microbatches, replicas))?;
            Ok((ReplicaShare { first, empty: count == 0, same_plan, ..ReplicaShare::default() }, plan))
        };
        Ok(Parts(shares.into_iter().map(part).collect::<Result<_, BuildError>>()?))
    }
}

/// The parts of a batch, one per replica.
#[derive(Clone, Debug)]
pub(crate) struct Parts(Vec<(ReplicaShare, Arc<CheckedPlan>)>);

impl Parts {
    pub(crate) fn of(&self, replica: usize) -> (ReplicaShare, &CheckedPlan) {
        let (share, plan) = &self.0[replica];
        (*share, plan)
    }

    pub(crate) fn replicas(&self) -> usize {
        self.0.len()
    }

    /// Returns true if all replicas have the same number of microbatches.
    pub(crate) fn are_even(&self) -> bool {
        self.0.iter().all(|(share, _)| share.same_plan)
    }

    pub(crate) fn name(&self) -> &str {
        self.0[0].1.plan().name()
    }

    pub(crate) fn has_backward(&self) -> bool {
        self.0[0].1.plan().has_backward()
    }
}

/// Proves the plan for rendezvous, the strictest transport, so a plan that runs over one link runs over all.
fn check(plan: Plan) -> Result<CheckedPlan, BuildError> {
    let checked = plan.check(&CheckOptions::default())?;
    let plan = checked.plan();
    tracing::info!(
        plan = plan.name(), ranks = plan.ranks(), stages = plan.stages(), microbatches = ?plan.microbatches(),
        trains = plan.has_backward(), warm_up = ?warm_up(plan), "plan proved"
    );
    Ok(checked)
}

/// The number of forwards of each rank before its first backward.
fn warm_up(plan: &Plan) -> Vec<usize> {
    let first = |rank| plan.tasks(rank).take_while(|task| !task.op().is_backward());
    (0..plan.ranks()).map(|rank| first(rank).filter(|task| task.op() == Op::Forward).count()).collect()
}

/// The stages whose backward a plan splits.
pub(crate) fn split_stages(plan: &Plan) -> BTreeSet<StageId> {
    let tasks = (0..plan.placement().ranks()).flat_map(|rank| plan.row(rank)).flat_map(|action| action.tasks());
    tasks.filter(|task| matches!(task.op(), Op::BackwardInput | Op::BackwardWeight)).map(|task| task.stage()).collect()
}

/// The name and checksum of a whole plan: placement, microbatches, and every action of every rank.
pub(crate) fn fingerprint(plan: &Plan) -> String {
    // A plan is numbers and text, so encoding cannot fail; if it did, all ranks would get the same sum.
    format!("{} #{:08x}", plan.name(), crc32fast::hash(&serde_json::to_vec(plan).unwrap_or_default()))
}
