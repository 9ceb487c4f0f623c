//! A learner and the pipeline that computes for it.
//!
//! Guarantees: the learner's model and optimizer are the ones that are stepped, so what Burn saves and returns is what was
//! trained; the pipeline's stages hold the same values after every step.
//!
//! 1. Stages are clones of the learner's layers, so parameters find each other by their ids.
//! 2. [`Session::train`] runs forwards and backwards. It takes the gradients of the whole item, as the loss contract scales them.
//! 3. [`Session::step`] steps the learner's model with Burn's optimizer, and the stages take the stepped values over. On one
//!    device both are handles of one tensor.
//! 4. [`Session::settle`] brings what stages change themselves (running statistics, parameters that follow a rule) back into the learner's model.

use crate::error::LearnError;
use crate::model::PipelineModel;
use crate::parameters::{check_cut, gradients_of, trained_weights};
use burn::module::ParamId;
use burn::optim::GradientsParams;
use burn::tensor::Device;
use burn_pipeline::stage::{NamedWeight, TensorKind, with_weights};
use burn_pipeline::{Builder, Pipeline, StageContext};
use burn_train::{Learner, TrainStep};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

/// A learner and the pipeline that computes for it.
pub(crate) struct Session<M: PipelineModel> {
    pipeline: Pipeline,
    /// The float parameters of each stage, in the order in which the pipeline gives gradients.
    places: Vec<Vec<ParamId>>,
    /// Parameters and buffers that the optimizer does not step.
    others: Vec<ParamId>,
    /// What losses observed since the last step.
    observed: Vec<Vec<f64>>,
    model: std::marker::PhantomData<fn() -> M>,
}

type Outcome<M> = <M as TrainStep>::Output;

impl<M: PipelineModel> Session<M> {
    /// Builds the pipeline around the learner's model.
    pub(crate) fn start(builder: Builder, learner: &Learner<M>) -> Result<Self, LearnError> {
        let model = learner.model();
        let trained = trained_weights(&model);
        if trained.is_empty() {
            return Err(LearnError::NothingTrained);
        }
        let cut = Arc::new(Mutex::new((model.clone(), BTreeMap::new())));
        let whole = Arc::downgrade(&cut);
        let stage = move |at: &StageContext| {
            // The builder may keep this function; the weights of before the training go when `cut` does.
            let cut = whole.upgrade().expect("stages are made while the pipeline is built");
            let mut cut = cut.lock().unwrap_or_else(PoisonError::into_inner);
            cut.1.insert(at.index, at.device.clone());
            let model = cut.0.clone();
            drop(cut);
            model.stage(at)
        };
        let mut pipeline = builder.stages(stage).outputs(true).build()?;
        let weights = pipeline.named_weights()?;
        check_cut(&model, &weights, &cut.lock().unwrap_or_else(PoisonError::into_inner).1)?;
        let floats = |stage: &Vec<NamedWeight>| {
            stage.iter().filter(|weight| weight.value.kind() == TensorKind::Float).map(|weight| weight.id).collect()
        };
        let places = weights.iter().map(floats).collect();
        let ids = weights.iter().flatten().map(|weight| weight.id);
        let others = ids.filter(|id| !trained.contains_key(id)).collect();
        Ok(Self { pipeline, places, others, observed: Vec::new(), model: std::marker::PhantomData })
    }

    /// Forwards and backwards of an item: its gradients, and what metrics get.
    pub(crate) fn train(
        &mut self,
        learner: &Learner<M>,
        item: <M as TrainStep>::Input,
    ) -> Result<(GradientsParams, Outcome<M>), LearnError> {
        let report = self.pipeline.accumulate(M::batch(&item))?;
        let output = report.output()?;
        let stages = self.places.iter().zip(self.pipeline.take_gradients()?);
        let gradients = stages.flat_map(|(ids, gradients)| ids.iter().copied().zip(gradients));
        let gradients = gradients.filter_map(|(id, gradient)| Some((id, gradient?))).collect();
        let gradients = match report.skipped {
            Some(_) => GradientsParams::new(),
            None => gradients_of(&learner.model(), gradients),
        };
        self.observed.extend(report.observed);
        Ok((gradients, M::outcome(item, output)))
    }

    /// Steps the learner's model, and gives the stages what came of it.
    pub(crate) fn step(&mut self, learner: &mut Learner<M>, gradients: GradientsParams) -> Result<(), LearnError> {
        learner.optimizer_step(gradients);
        let weights = trained_weights(&learner.model());
        Ok(self.pipeline.step_to(weights, std::mem::take(&mut self.observed))?)
    }

    /// Forwards of an item: what metrics get.
    pub(crate) fn validate(&mut self, item: <M as TrainStep>::Input) -> Result<Outcome<M>, LearnError> {
        let output = self.pipeline.eval(M::batch(&item))?.output()?;
        Ok(M::outcome(item, output))
    }

    /// Brings what the optimizer does not step back into the learner's model.
    pub(crate) fn settle(&mut self, learner: &mut Learner<M>) -> Result<(), LearnError> {
        if self.others.is_empty() {
            return Ok(());
        }
        let weights = self.pipeline.named_weights()?.into_iter().flatten();
        let others = weights.filter(|weight| self.others.contains(&weight.id));
        let others: HashMap<_, _> = others.map(|weight| (weight.id, weight.value)).collect();
        learner.load_model(with_weights(learner.model(), &others).into_record());
        Ok(())
    }
}

/// The device of the model's first parameter, without autodiff, where items are made.
pub(crate) fn data_device<M: PipelineModel>(learner: &Learner<M>) -> Device {
    learner.model().devices().into_iter().next().unwrap_or_default().inner()
}
