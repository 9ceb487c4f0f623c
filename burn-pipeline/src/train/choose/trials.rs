//! Trials, one after the other: each contender against the running plan.
//!
//! Guarantees: the final plan is the first one, or won a trial against the one before it, unless a change of plans
//! failed. After an error some plan keeps running, with the weights of the last step.
//!
//! 1. A contender is prepared beside the running plan ([`Ready`]), and both take turns ([`Turns`]), repeatedly if the
//!    result is close.
//! 2. Ranks in processes compare the longest measurement of each step over all ranks, so that all decide alike.
//! 3. A winning contender stays. The loser is dropped, and the next contender is tried.

use super::contender::{Contender, Folder, Ready};
use super::decision::{AutoError, Choice};
use super::trial::{Next, Trial, Turns};
use crate::train::pipeline::Pipeline;
use std::collections::VecDeque;

pub(super) struct Trials {
    pub(super) running: Contender,
    pub(super) contenders: VecDeque<Contender>,
    pub(super) contest: Option<Contest>,
    pub(super) folder: Folder,
    pub(super) stages_move: bool,
    /// Steps of each plan in a trial, and a contender's warm-up steps.
    pub(super) steps: usize,
    pub(super) warm_up: usize,
    pub(super) switches: usize,
}

/// A contender that takes turns with the running plan.
pub(super) struct Contest {
    contender: Contender,
    ready: Ready,
    turns: Turns,
}

impl std::fmt::Debug for Trials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let contender = self.contest.as_ref().map(|contest| &contest.contender.name);
        f.debug_struct("Trials").field("running", &self.running.name).field("contender", &contender).finish()
    }
}

impl Trials {
    /// Prepares the next contender, if any. With 0 trial steps it runs at once.
    pub(super) fn next(&mut self, pipeline: &mut Pipeline, choice: &mut Choice) -> Result<bool, AutoError> {
        let Some(contender) = self.contenders.pop_front() else { return Ok(false) };
        let ready = Ready::new(pipeline, &self.running, &contender, self.stages_move)?;
        let turns = Turns::new(self.steps, self.warm_up);
        self.contest = Some(Contest { contender, ready, turns });
        if self.steps > 0 {
            return Ok(true);
        }
        self.change(pipeline)?;
        self.settle(pipeline, true, choice)?;
        self.next(pipeline, choice)
    }

    /// Records a step. Returns whether trials continue.
    pub(super) fn take(
        &mut self,
        pipeline: &mut Pipeline,
        choice: &mut Choice,
        seconds: f64,
    ) -> Result<bool, AutoError> {
        let Some(contest) = &mut self.contest else { return Ok(false) };
        match contest.turns.take(seconds) {
            Next::Same => return Ok(true),
            Next::Change => return self.change(pipeline).map(|()| true),
            Next::Over => {}
        }
        let Contest { contender, turns, .. } = contest;
        let [running, challenging] = turns.seconds.clone();
        let seconds = [pipeline.agree_on_longest(running)?, pipeline.agree_on_longest(challenging)?];
        let trial = Trial::new(contender.name.clone(), contender.seconds, seconds);
        if trial.is_close() && turns.repeat() {
            return Ok(true);
        }
        tracing::info!(%trial, "plans compared");
        let won = trial.is_won();
        choice.trials.push(trial);
        if won {
            self.change(pipeline)?;
        }
        self.settle(pipeline, won, choice)?;
        self.next(pipeline, choice)
    }

    /// Swaps the running plan and the contender.
    fn change(&mut self, pipeline: &mut Pipeline) -> Result<(), AutoError> {
        let Some(contest) = &mut self.contest else { return Ok(()) };
        contest.ready.exchange(pipeline, &self.folder)?;
        self.switches += 1;
        Ok(())
    }

    /// Ends a contest: drops the plan that does not run.
    fn settle(&mut self, pipeline: &mut Pipeline, won: bool, choice: &mut Choice) -> Result<(), AutoError> {
        let Some(contest) = self.contest.take() else { return Ok(()) };
        if won {
            (choice.running, choice.running_seconds) = (contest.contender.name.clone(), contest.contender.seconds);
            self.running = contest.contender;
        }
        contest.ready.dismiss(pipeline)
    }

    /// Drops a contender after an error; the running plan continues.
    pub(super) fn give_up(&mut self, pipeline: &mut Pipeline) {
        if let Some(contest) = self.contest.take() {
            // A pipeline that cannot drop it is closed, and the next step returns that error.
            let _ = contest.ready.dismiss(pipeline);
        }
    }
}
