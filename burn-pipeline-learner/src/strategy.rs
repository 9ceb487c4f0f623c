//! The strategy: Burn's training loop over a pipeline.
//!
//! Guarantees: the same events, in the same order, as Burn's strategy for one device, so that metrics, checkpoints, early
//! stopping, interruptions and dashboards work as they do there; a failure of a rank ends the training with an error that
//! names it ([`LearningResult::error`](burn_train::LearningResult)), and the model trained so far is returned.
//!
//! Source: `SingleDeviceTrainingStrategy` of burn-train 0.22.1.

use crate::error::LearnError;
use crate::model::PipelineModel;
use crate::session::{Session, data_device};
use burn::data::dataloader::Progress;
use burn::optim::GradientsAccumulator;
use burn_pipeline::Builder;
use burn_train::{
    EventProcessorTraining, InferenceStep, Interrupter, Learner, LearnerEvent, SupervisedLearningStrategy,
    SupervisedTrainingEventProcessor, TrainLoader, TrainStep, TrainingComponents, TrainingItem, TrainingStrategy,
    ValidLoader,
};
use std::sync::Arc;

/// Trains a [`PipelineModel`] as a pipeline of ranks on threads of this process, under Burn's own training loop.
///
/// The builder says how: schedule, devices, reduction, .. Its stages and its optimizer are the learner's, whatever it was given.
#[derive(Clone, Debug)]
pub struct PipelineStrategy {
    builder: Builder,
}

impl PipelineStrategy {
    /// A strategy that runs the pipeline which this builder describes.
    pub fn new(builder: Builder) -> Self {
        Self { builder }
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
        learner: Learner<M>,
        train: TrainLoader<M>,
        valid: ValidLoader<M>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        let interrupter = components.interrupter.clone();
        let session = match Session::start(self.builder.clone(), &learner) {
            Ok(session) => session,
            Err(error) => {
                interrupter.fail(error);
                return (learner.model(), components.event_processor);
            }
        };
        let device = data_device(&learner);
        let (train, valid) = (train.to_device(&device), valid.to_device(&device));
        let (events, accumulation) = (components.event_processor, components.grad_accumulation);
        let mut fit = Fit { session, learner, events, interrupter, train, valid, accumulation };
        let (mut checkpointer, mut early_stopping) = (components.checkpointer, components.early_stopping);
        for epoch in starting_epoch..=components.num_epochs {
            fit.epoch(epoch);
            if checkpointer.is_some() || early_stopping.is_some() {
                fit.interrupter.fail_on_error(fit.events.flush());
            }
            if fit.interrupter.should_stop() {
                break;
            }
            if let Some(checkpointer) = &mut checkpointer {
                checkpointer.checkpoint(&fit.learner, epoch, &components.event_store);
            }
            if early_stopping.as_mut().is_some_and(|stopping| stopping.should_stop(epoch, &components.event_store)) {
                break;
            }
        }
        (fit.learner.model(), fit.events)
    }
}

/// A training under way.
struct Fit<M: PipelineModel> {
    session: Session<M>,
    learner: Learner<M>,
    events: SupervisedTrainingEventProcessor<M>,
    interrupter: Interrupter,
    train: TrainLoader<M>,
    valid: ValidLoader<M>,
    accumulation: Option<usize>,
}

impl<M: PipelineModel> Fit<M> {
    /// Trains on all items, and validates unless something stopped the training.
    fn epoch(&mut self, epoch: usize) {
        let (train, valid) = (self.train.clone(), self.valid.clone());
        let start = |total_items| LearnerEvent::StartSplit { epoch_number: epoch, total_items };
        self.interrupter.fail_on_error(self.events.process_train(start(train.num_items())));
        self.train_split(&train);
        self.interrupter.fail_on_error(self.events.process_train(LearnerEvent::EndSplit(epoch)));
        if !self.interrupter.should_stop() {
            self.interrupter.fail_on_error(self.events.process_valid(start(valid.num_items())));
            self.validate_split(&valid);
            self.interrupter.fail_on_error(self.events.process_valid(LearnerEvent::EndSplit(epoch)));
            self.interrupter.fail_on_error(self.events.process_train(LearnerEvent::EndEpoch(epoch)));
        }
        // An error of its own would follow one that is reported already.
        if self.interrupter.error().is_none() {
            self.interrupter.fail_on_error(self.session.settle(&mut self.learner));
        }
    }

    fn train_split(&mut self, loader: &TrainLoader<M>) {
        let mut accumulator = Accumulator::new(self.accumulation);
        let (mut items, mut iteration) = (loader.iter(), 0);
        while let Some(item) = items.next() {
            iteration += 1;
            let progress = items.progress();
            let trained = match item {
                Ok(item) => self.train_item(item, &progress, &mut accumulator),
                Err(error) => return self.interrupter.fail(error),
            };
            let outcome = match trained {
                Ok(outcome) => outcome,
                Err(error) => return self.interrupter.fail(error),
            };
            let item = TrainingItem::new(outcome, progress, Some(iteration), Some(self.learner.lr_current()));
            self.interrupter.fail_on_error(self.events.process_train(LearnerEvent::ProcessedItem(item)));
            if self.interrupter.should_stop() {
                return;
            }
        }
    }

    /// Trains on an item; the weights are stepped if it is the last of those that count as one.
    fn train_item(
        &mut self,
        item: <M as TrainStep>::Input,
        progress: &Progress,
        accumulator: &mut Accumulator<M>,
    ) -> Result<<M as TrainStep>::Output, LearnError> {
        let (gradients, outcome) = self.session.train(&self.learner, item)?;
        accumulator.gradients.accumulate(&self.learner.model(), gradients);
        accumulator.items += 1;
        if accumulator.items >= accumulator.every || progress.is_completed() {
            accumulator.items = 0;
            self.learner.lr_step();
            self.session.step(&mut self.learner, accumulator.gradients.grads())?;
        }
        Ok(outcome)
    }

    fn validate_split(&mut self, loader: &ValidLoader<M>) {
        let (mut items, mut iteration) = (loader.iter(), 0);
        while let Some(item) = items.next() {
            iteration += 1;
            let progress = items.progress();
            let validated = match item {
                Ok(item) => self.session.validate(item),
                Err(error) => return self.interrupter.fail(error),
            };
            let outcome: <M as InferenceStep>::Output = match validated {
                Ok(outcome) => outcome,
                Err(error) => return self.interrupter.fail(error),
            };
            let item = TrainingItem::new(outcome, progress, Some(iteration), None);
            self.interrupter.fail_on_error(self.events.process_valid(LearnerEvent::ProcessedItem(item)));
            if self.interrupter.should_stop() {
                return;
            }
        }
    }
}

/// The gradients of items that count as one step.
struct Accumulator<M> {
    gradients: GradientsAccumulator<M>,
    items: usize,
    every: usize,
}

impl<M> Accumulator<M> {
    fn new(every: Option<usize>) -> Self {
        Self { gradients: GradientsAccumulator::new(), items: 0, every: every.unwrap_or(1) }
    }
}
