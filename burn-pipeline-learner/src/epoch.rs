//! One epoch: training and validation, item by item, with the same events as Burn's single-device strategy.
//!
//! Guarantees: when ranks are processes, all stop after the same item, whichever was interrupted. An error in one
//! process ends the training of all with an error that names it. Processes that differ in item, learning rate or
//! weights end with an error. Only rank 0 emits events.

use crate::error::LearnError;
use crate::model::PipelineModel;
use crate::parameters::{checksum, rates};
use crate::session::Session;
use burn::data::dataloader::Progress;
use burn::optim::GradientsAccumulator;
use burn_train::{
    EventProcessorTraining, InferenceStep, Interrupter, Learner, LearnerEvent, SupervisedTrainingEventProcessor,
    TrainLoader, TrainStep, TrainingError, TrainingItem, ValidLoader,
};

/// A running training.
pub(crate) struct Fit<M: PipelineModel> {
    pub(crate) session: Session<M>,
    pub(crate) learner: Learner<M>,
    pub(crate) events: SupervisedTrainingEventProcessor<M>,
    pub(crate) interrupter: Interrupter,
    pub(crate) train: TrainLoader<M>,
    pub(crate) valid: ValidLoader<M>,
    /// The number of items per optimizer step.
    pub(crate) every: usize,
    /// True if all processes have stopped, or this one has failed.
    pub(crate) stopped: bool,
}

type TrainEvent<M> = LearnerEvent<<M as TrainStep>::Output>;
type ValidEvent<M> = LearnerEvent<<M as InferenceStep>::Output>;

impl<M: PipelineModel> Fit<M> {
    /// Trains on all items, and validates unless something stopped the training.
    pub(crate) fn epoch(&mut self, epoch: usize) {
        let (train, valid) = (self.train.clone(), self.valid.clone());
        self.tell(LearnerEvent::StartSplit { epoch_number: epoch, total_items: train.num_items() });
        self.train_split(&train, epoch);
        self.tell(LearnerEvent::EndSplit(epoch));
        if !self.stops(|_| format!("at the end of training in epoch {epoch}")) {
            self.tell_valid(LearnerEvent::StartSplit { epoch_number: epoch, total_items: valid.num_items() });
            self.validate_split(&valid, epoch);
            self.tell_valid(LearnerEvent::EndSplit(epoch));
            self.tell(LearnerEvent::EndEpoch(epoch));
        }
        // The interrupter keeps the first error.
        if self.interrupter.error().is_none()
            && let Err(error) = self.session.settle(&mut self.learner)
        {
            self.fail(error);
        }
    }

    /// Returns true if any process stops at the end of this epoch. All must have the same weights.
    pub(crate) fn epoch_stops(&mut self, epoch: usize) -> bool {
        self.stops(|learner| format!("at the end of epoch {epoch} with weights {}", checksum(&learner.model())))
    }

    /// Returns rank 0's decision.
    pub(crate) fn as_first(&mut self, own: bool) -> bool {
        self.session.as_first(own).unwrap_or_else(|error| {
            self.fail(error);
            true
        })
    }

    fn train_split(&mut self, loader: &TrainLoader<M>, epoch: usize) {
        let mut accumulator = Accumulator { gradients: GradientsAccumulator::new(), items: 0 };
        // Gradients of an earlier epoch's last items were dropped.
        self.session.observed = None;
        let (mut items, mut iteration) = (loader.iter(), 0);
        while let Some(item) = items.next() {
            iteration += 1;
            let progress = items.progress();
            let trained = match item {
                Ok(item) => self.train_item(item, &progress, &mut accumulator),
                Err(error) => return self.fail(error),
            };
            match trained {
                Ok(None) => {}
                Ok(Some(outcome)) => {
                    let item = TrainingItem::new(outcome, progress, Some(iteration), Some(self.learner.lr_current()));
                    self.tell(LearnerEvent::ProcessedItem(item));
                }
                Err(error) => return self.fail(error),
            }
            let place = |learner: &Learner<M>| {
                format!("after item {iteration} of epoch {epoch} at learning rate {}", rates(learner))
            };
            if self.stops(place) {
                return;
            }
        }
    }

    /// Trains on one item. Steps the weights if it is the last item of a step.
    fn train_item(
        &mut self,
        item: <M as TrainStep>::Input,
        progress: &Progress,
        accumulator: &mut Accumulator<M>,
    ) -> Result<Option<<M as TrainStep>::Output>, LearnError> {
        let (gradients, outcome) = self.session.train(&self.learner, item)?;
        accumulator.gradients.accumulate(&self.learner.model(), gradients);
        accumulator.items += 1;
        if accumulator.items >= self.every || progress.is_completed() {
            accumulator.items = 0;
            self.learner.lr_step();
            self.session.step(&mut self.learner, accumulator.gradients.grads())?;
        }
        Ok(outcome)
    }

    fn validate_split(&mut self, loader: &ValidLoader<M>, epoch: usize) {
        let (mut items, mut iteration) = (loader.iter(), 0);
        while let Some(item) = items.next() {
            iteration += 1;
            let progress = items.progress();
            let validated = match item {
                Ok(item) => self.session.validate(item),
                Err(error) => return self.fail(error),
            };
            match validated {
                Ok(None) => {}
                Ok(Some(outcome)) => {
                    let item = TrainingItem::new(outcome, progress, Some(iteration), None);
                    self.tell_valid(LearnerEvent::ProcessedItem(item));
                }
                Err(error) => return self.fail(error),
            }
            if self.stops(|_| format!("after item {iteration} of the validation in epoch {epoch}")) {
                return;
            }
        }
    }

    fn tell(&mut self, event: TrainEvent<M>) {
        if self.session.leads {
            self.interrupter.fail_on_error(self.events.process_train(event));
        }
    }

    fn tell_valid(&mut self, event: ValidEvent<M>) {
        if self.session.leads {
            self.interrupter.fail_on_error(self.events.process_valid(event));
        }
    }

    /// Returns true if any process stops here. All must be at the same place.
    fn stops(&mut self, place: impl FnOnce(&Learner<M>) -> String) -> bool {
        if self.stopped {
            return true;
        }
        if let Some(error) = self.interrupter.error() {
            self.session.leave(error);
            self.stopped = true;
            return true;
        }
        let own = self.interrupter.should_stop().then(|| self.interrupter.get_message());
        match self.session.agree(own, || place(&self.learner)) {
            Ok(None) => {}
            Ok(Some(reason)) => {
                self.interrupter.stop(reason.as_deref());
                self.stopped = true;
            }
            Err(error) => self.fail(error),
        }
        self.stopped
    }

    /// Ends the training of all processes with an error.
    fn fail(&mut self, error: impl Into<TrainingError>) {
        let error = error.into();
        self.session.leave(&error);
        self.interrupter.fail(error);
        self.stopped = true;
    }
}

/// The gradients accumulated for one step.
struct Accumulator<M> {
    gradients: GradientsAccumulator<M>,
    items: usize,
}
