//! Other stages for a running pipeline: with another cut or placement, recomputation, or another engine.
//!
//! Guarantees: an error leaves the running pipeline unchanged, on all ranks alike, unless a rank was lost. Weights,
//! optimizer state and progress are carried over to the last bit.
//!
//! Every rank builds its other stages on the thread and link of the running ones, and agrees on them as at the start of
//! a pipeline ([`Rank::stand_by`]); if one fails, none keeps them. Weights move through a checkpoint, both ways and
//! repeatedly. Both are in memory until the standby is dismissed.

use super::agree::first_failure;
use super::decision::AutoError;
use crate::execute::ExecuteError;
use crate::train::checkpoint::{Checkpoint, Checkpoints};
use crate::train::control::Command;
use crate::train::error::PipelineError;
use crate::train::facts::StageFacts;
use crate::train::pipeline::Pipeline;
use crate::train::plans::Plans;
use crate::train::setup::{Blueprint, Builder};
use crate::train::shared::SharedReport;
use crate::train::stages::Stages;
use crate::train::step::Rank;
use burn_pipeline_plan::cost::Partition;
use std::time::Instant;

/// Plans and stages on standby: a pipeline could run them instead of its own.
#[derive(Debug)]
pub(super) struct Standby {
    plans: Plans,
    stages: Stages,
    learns_metadata: bool,
    cut: Option<Partition>,
}

impl Pipeline {
    /// Builds stages with this builder for these plans, and keeps them on standby beside the running ones. After an
    /// error no rank keeps any.
    pub(super) fn stand_by(&mut self, builder: &Builder, mut plans: Plans) -> Result<Standby, AutoError> {
        self.is_unchanged()?;
        let job = self.ranks.processes.then(Vec::new);
        let blueprint = Blueprint { builder: builder.clone(), plan: plans.current()?, job, predicted: Vec::new() };
        let asked = self.ask(StandBy { blueprint });
        // Other errors are of calls that no rank has run.
        let have_run = asked.as_ref().map_or_else(|error| error.of_rank().is_some(), |_| true);
        let fitted = asked.map_err(AutoError::from).and_then(|built| self.fitted(builder, plans, built));
        if fitted.is_err() && have_run {
            // A pipeline that cannot drop them is closed, and the next step returns that error.
            let _ = self.dismiss();
        }
        fitted
    }

    /// The stages that ranks have built, with these plans, if they fit together.
    fn fitted(&self, builder: &Builder, mut plans: Plans, built: Vec<Built>) -> Result<Standby, AutoError> {
        let built: Result<Vec<_>, AutoError> = built.into_iter().collect();
        let stages = Stages::of_ranks(built?, builder.input_gradients);
        stages.fit_together(&plans.skips)?;
        plans.train_from(stages.first_trained())?;
        stages.refuse_unused()?;
        if let Some(last) = stages.lacks_loss().filter(|_| self.stages.has_loss()) {
            return Err(PipelineError::NoLoss { last, ranks: self.placement().ranks() }.into());
        }
        Ok(Standby { plans, stages, learns_metadata: self.settings.learns_metadata(), cut: builder.cut.clone() })
    }

    /// Runs the standby stages, with the weights, optimizer state and progress of the running ones, which become the
    /// standby.
    pub(super) fn change_places(&mut self, standby: &mut Standby, checkpoints: &Checkpoints) -> Result<(), AutoError> {
        self.is_unchanged()?;
        // The checkpoint that moves stages is not part of the job's history.
        let last = self.branch.last.clone();
        let saved = self.save(checkpoints, &());
        self.branch.last.clone_from(&last);
        let saved = Checkpoint::open(saved?);
        let checkpoint = self.admit(saved)?;
        self.swap(standby)?;
        let loaded = self.load(&checkpoint);
        self.branch.last = last;
        if loaded.is_err() {
            self.swap(standby)?;
        }
        Ok(loaded?)
    }

    /// Checks that all stages hold the modules with which they were built.
    pub(super) fn is_unchanged(&self) -> Result<(), AutoError> {
        if self.is_as_built { Ok(()) } else { Err(AutoError::Replaced) }
    }

    fn swap(&mut self, standby: &mut Standby) -> Result<(), PipelineError> {
        self.ask(Swap)?;
        std::mem::swap(&mut self.plans, &mut standby.plans);
        std::mem::swap(&mut self.stages, &mut standby.stages);
        std::mem::swap(&mut self.learns_metadata, &mut standby.learns_metadata);
        std::mem::swap(&mut self.cut, &mut standby.cut);
        Ok(())
    }

    /// Drops the standby stages.
    pub(super) fn dismiss(&mut self) -> Result<(), PipelineError> {
        self.ask(Dismiss).map(drop)
    }
}

struct StandBy {
    blueprint: Blueprint,
}

/// What a rank tells of the stages that it has built, and the reports of tied parameters.
type Built = Result<(Vec<StageFacts>, Vec<SharedReport>), AutoError>;

impl Command for StandBy {
    type Reply = Built;
    const NAME: &'static str = "building other stages";
    const RUNS_ON_WEIGHTS: bool = true;

    fn run(&self, rank: &mut Rank, _: Instant) -> Result<Self::Reply, ExecuteError> {
        let device = rank.executor.device().clone();
        let outputs = rank.settings.outputs;
        let groups = rank.executor.groups().clone();
        let made = self.blueprint.make(rank.executor.link(), &device, &groups, outputs);
        let failure = made.as_ref().err().map(ToString::to_string);
        if let Some((rank, message)) = first_failure(rank.executor.gather(&failure)?) {
            return Ok(Err(AutoError::OtherStages { rank, message }));
        }
        let (builder, placement) = (&self.blueprint.builder, self.blueprint.placement());
        let known = self.blueprint.facts(rank.executor.link(), made?).and_then(|(stages, facts)| {
            let shared = rank.stand_by(stages, placement.clone(), &builder.shared, builder.sharded)?;
            Ok((facts, shared))
        });
        match known {
            Ok(known) => Ok(Ok(known)),
            // Every rank finds these in the same table.
            Err(error @ (ExecuteError::Handshake { .. } | ExecuteError::Shared { .. })) => {
                Ok(Err(AutoError::OtherStages { rank: rank.number(), message: error.cause().to_string() }))
            }
            Err(error) => Err(error),
        }
    }
}

struct Swap;

impl Command for Swap {
    type Reply = ();
    const NAME: &'static str = "changing to other stages";

    fn run(&self, rank: &mut Rank, _: Instant) -> Result<(), ExecuteError> {
        rank.swap();
        Ok(())
    }
}

struct Dismiss;

impl Command for Dismiss {
    type Reply = ();
    const NAME: &'static str = "dropping other stages";

    fn run(&self, rank: &mut Rank, _: Instant) -> Result<(), ExecuteError> {
        rank.standby = None;
        Ok(())
    }
}
