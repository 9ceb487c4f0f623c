//! The training strategy that runs a pipeline.
//!
//! Guarantees: emits the same events, in the same order, as Burn's single-device strategy, so metrics, checkpoints,
//! early stopping, interruption and dashboards work the same. If a rank fails, the training ends with an error that
//! names it ([`LearningResult::error`](burn_train::LearningResult)) and returns the model trained so far.
//!
//! 1. When ranks are processes, all take over rank 0's learner and its numbers of epochs (`state`).
//! 2. Each epoch trains and validates (`epoch`).
//! 3. Rank 0 handles checkpoints and early stopping; the others get its decision.
//!
//! Source: `SingleDeviceTrainingStrategy` of burn-train 0.22.1.

use crate::epoch::Fit;
use crate::error::LearnError;
use crate::model::PipelineModel;
use crate::session::{Session, data_device};
use crate::silent::Silent;
use crate::state::share;
use burn_pipeline::Builder;
use burn_pipeline::link::Link;
use burn_train::{
    EventProcessorTraining, Learner, SupervisedLearningStrategy, SupervisedTraining, SupervisedTrainingEventProcessor,
    TrainLoader, TrainingComponents, TrainingStrategy, ValidLoader,
};
use parking_lot::Mutex;
use std::sync::Arc;

/// Trains a [`PipelineModel`] as a pipeline under Burn's own training loop. Ranks are threads of this process, or
/// processes.
///
/// The builder sets schedule, devices, reduction and so on. Its stages and its optimizer are replaced by the learner's.
pub struct PipelineStrategy {
    builder: Builder,
    ranks: Ranks,
}

/// Where ranks run.
enum Ranks {
    Threads,
    /// This process is one rank; the launched training takes the link.
    Processes {
        rank: usize,
        link: Mutex<Option<Box<dyn Link>>>,
    },
}

impl PipelineStrategy {
    /// Creates a strategy that runs the builder's pipeline with its ranks as threads of this process.
    pub fn new(builder: Builder) -> Self {
        Self { builder, ranks: Ranks::Threads }
    }

    /// Creates a strategy for one rank, in a process of its own; `link` connects the processes. Each process runs the
    /// same program, with its own end of the link and an equal builder, and sets its training up with
    /// [`PipelineStrategy::on`]; see [Ranks as processes](crate#ranks-as-processes).
    pub fn of_rank(builder: Builder, link: Box<dyn Link>) -> Self {
        Self { builder, ranks: Ranks::Processes { rank: link.rank(), link: Mutex::new(Some(link)) } }
    }

    /// Makes a training run under this strategy. On ranks other than 0 it also removes Burn's dashboard and log.
    pub fn on<M: PipelineModel>(self, training: SupervisedTraining<M>) -> SupervisedTraining<M> {
        let training = match self.ranks {
            Ranks::Processes { rank: 1.., .. } => training.renderer(Box::new(Silent)).with_application_logger(None),
            _ => training,
        };
        training.with_training_strategy(self.into())
    }

    /// The link to the other processes.
    fn link(&self) -> Result<Option<Box<dyn Link>>, LearnError> {
        match &self.ranks {
            Ranks::Threads => Ok(None),
            Ranks::Processes { link, .. } => {
                let link = link.lock().take();
                link.ok_or(LearnError::LinkUsed).map(Some)
            }
        }
    }

    /// Returns the session, and rank 0's first epoch, last epoch, and number of items per step.
    fn start<M: PipelineModel>(
        &self,
        learner: &mut Learner<M>,
        components: &TrainingComponents<M>,
        first: usize,
    ) -> Result<(Session<M>, [usize; 3]), LearnError> {
        let own = [first, components.num_epochs, components.grad_accumulation.unwrap_or(1)];
        let link = self.link()?;
        // A learner steps whole weights.
        if self.builder.get_vocabulary().is_some() {
            link.into_iter().for_each(|mut link| link.abort(LearnError::Vocabulary.to_string()));
            return Err(LearnError::Vocabulary);
        }
        let Some(mut link) = link else {
            return Ok((Session::start(self.builder.clone(), None, learner)?, own));
        };
        let timeout = self.builder.get_timeout();
        let shared = share(link.as_mut(), learner, own.map(|number| number as u64), &components.event_store, timeout);
        // Abort while the link exists: a rank that only closed it would give no reason.
        let shared = shared.inspect_err(|error| link.abort(error.to_string()))?;
        Ok((Session::start(self.builder.clone(), Some(link), learner)?, shared.map(|number| number as usize)))
    }
}

impl std::fmt::Debug for PipelineStrategy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rank = match self.ranks {
            Ranks::Threads => None,
            Ranks::Processes { rank, .. } => Some(rank),
        };
        f.debug_struct("PipelineStrategy").field("builder", &self.builder).field("rank", &rank).finish()
    }
}

impl<M: PipelineModel> From<PipelineStrategy> for TrainingStrategy<M> {
    fn from(strategy: PipelineStrategy) -> Self {
        TrainingStrategy::Custom(Arc::new(strategy))
    }
}

impl<M: PipelineModel> SupervisedLearningStrategy<M> for PipelineStrategy {
    fn fit(
        &self,
        components: TrainingComponents<M>,
        mut learner: Learner<M>,
        train: TrainLoader<M>,
        valid: ValidLoader<M>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        let interrupter = components.interrupter.clone();
        let (session, [first, last, every]) = match self.start(&mut learner, &components, starting_epoch) {
            Ok(started) => started,
            Err(error) => {
                interrupter.fail(error);
                return (learner.model(), components.event_processor);
            }
        };
        let device = data_device(&learner);
        let (train, valid) = (train.to_device(&device), valid.to_device(&device));
        let (events, leads) = (components.event_processor, session.leads);
        let mut fit = Fit { session, learner, events, interrupter, train, valid, every, stopped: false };
        let mut checkpointer = components.checkpointer.filter(|_| leads);
        let mut early_stopping = components.early_stopping.filter(|_| leads);
        for epoch in first..=last {
            fit.epoch(epoch);
            if checkpointer.is_some() || early_stopping.is_some() {
                fit.interrupter.fail_on_error(fit.events.flush());
            }
            if fit.epoch_stops(epoch) {
                break;
            }
            if let Some(checkpointer) = &mut checkpointer {
                checkpointer.checkpoint(&fit.learner, epoch, &components.event_store);
            }
            let stops =
                early_stopping.as_mut().is_some_and(|stopping| stopping.should_stop(epoch, &components.event_store));
            if fit.as_first(stops) {
                break;
            }
        }
        (fit.learner.model(), fit.events)
    }
}
