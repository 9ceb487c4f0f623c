//! A learner and the pipeline that computes for it.
//!
//! Guarantees: the learner's model and optimizer are the ones that are stepped, so what Burn saves and returns is what was
//! trained; the pipeline's stages hold the same values after every step. Where ranks are processes, each has a learner, and all of
//! them have the same values.
//!
//! 1. Stages are clones of the learner's layers, so parameters find each other by their ids.
//! 2. [`Session::train`] runs forwards and backwards. It takes the gradients of the whole item, as the loss contract scales them.
//! 3. [`Session::step`] steps the learner's model with Burn's optimizer, and the stages take the stepped values over. On one
//!    device both are handles of one tensor.
//! 4. [`Session::settle`] brings what stages change themselves (running statistics, parameters that follow a rule) back into the learner's model.
//! 5. Where ranks are processes, gradients go to all of them, outputs to rank 0. [`Session::agree`] compares what they do.

use crate::error::LearnError;
use crate::model::PipelineModel;
use crate::parameters::{check_cut, gradients_of, ids_of, make_leaves, trained_weights};
use burn::module::ParamId;
use burn::optim::GradientsParams;
use burn::tensor::Device;
use burn_pipeline::link::Link;
use burn_pipeline::stage::{NamedWeight, TensorKind, with_weights};
use burn_pipeline::train::EvalResults;
use burn_pipeline::{Builder, Pipeline, StageContext};
use burn_train::{Learner, TrainStep};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};

/// A learner and the pipeline that computes for it.
pub(crate) struct Session<M: PipelineModel> {
    pipeline: Pipeline,
    /// The learner's ids of parameters, by those of every process: running statistics keep their own when a learner is taken over.
    ids: HashMap<ParamId, ParamId>,
    /// The float parameters of each stage, in the order in which the pipeline gives gradients.
    places: Vec<Vec<ParamId>>,
    /// Parameters and buffers that the optimizer does not step.
    others: Vec<ParamId>,
    /// What losses observed since the last step.
    observed: Vec<Vec<f64>>,
    /// Is this the process that gets outputs?
    leads: bool,
    /// Are there other processes?
    several: bool,
    model: std::marker::PhantomData<fn() -> M>,
}

type Outcome<M> = <M as TrainStep>::Output;

/// The reason that a process was given to stop, if it was to stop.
pub(crate) type Stop = Option<Option<String>>;

impl<M: PipelineModel> Session<M> {
    /// Builds the pipeline around the learner's model: of threads, or this process's rank of it.
    pub(crate) fn start(
        builder: Builder,
        link: Option<Box<dyn Link>>,
        learner: &mut Learner<M>,
    ) -> Result<Self, LearnError> {
        make_leaves(learner)?;
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
            // Of ranks that hold a stage together, the first joins the pieces.
            if at.group.member() == 0 {
                cut.1.insert(at.index, at.device.clone());
            }
            let model = cut.0.clone();
            drop(cut);
            model.stage(at)
        };
        let builder = builder.stages(stage);
        let several = link.is_some();
        let leads = link.as_ref().is_none_or(|link| link.rank() == 0);
        let mut pipeline = match link {
            None => builder.outputs(true).build()?,
            Some(link) => builder.outputs(leads).compare_batches(true).build_rank(link)?,
        };
        let own = ids_of(&model);
        let rows = pipeline.exchange(own.iter().map(ParamId::val).collect::<Vec<u64>>())?;
        let ids =
            rows.into_iter().flat_map(|row| row.into_iter().map(ParamId::from).zip(own.iter().copied())).collect();
        let weights = named_weights(&mut pipeline, &ids)?;
        let checked = check_cut(&model, &weights, &cut.lock().unwrap_or_else(PoisonError::into_inner).1);
        checked.inspect_err(|error| pipeline.leave(error))?;
        let floats = |stage: &Vec<NamedWeight>| {
            stage.iter().filter(|weight| weight.value.kind() == TensorKind::Float).map(|weight| weight.id).collect()
        };
        let places = weights.iter().map(floats).collect();
        let held = weights.iter().flatten().map(|weight| weight.id);
        let others = held.filter(|id| !trained.contains_key(id)).collect();
        Ok(Self {
            pipeline,
            ids,
            places,
            others,
            observed: Vec::new(),
            leads,
            several,
            model: std::marker::PhantomData,
        })
    }

    /// Forwards and backwards of an item: its gradients, and what metrics get, on rank 0.
    pub(crate) fn train(
        &mut self,
        learner: &Learner<M>,
        item: <M as TrainStep>::Input,
    ) -> Result<(GradientsParams, Option<Outcome<M>>), LearnError> {
        let report = self.pipeline.accumulate(M::batch(&item))?;
        let output = self.leads.then(|| M::join(report.outputs()?)).transpose()?;
        let stages = self.places.iter().zip(self.pipeline.take_gradients()?);
        let gradients = stages.flat_map(|(ids, gradients)| ids.iter().copied().zip(gradients));
        let gradients = gradients.filter_map(|(id, gradient)| Some((id, gradient?))).collect();
        let gradients = match report.skipped {
            Some(_) => GradientsParams::new(),
            None => gradients_of(&learner.model(), gradients),
        };
        self.observed.extend(report.observed);
        Ok((gradients, output.map(|output| M::outcome(item, output))))
    }

    /// Steps the learner's model, and gives the stages what came of it.
    pub(crate) fn step(&mut self, learner: &mut Learner<M>, gradients: GradientsParams) -> Result<(), LearnError> {
        learner.optimizer_step(gradients);
        let weights = trained_weights(&learner.model());
        Ok(self.pipeline.step_to(weights, std::mem::take(&mut self.observed))?)
    }

    /// Forwards of an item: what metrics get, on rank 0.
    pub(crate) fn validate(&mut self, item: <M as TrainStep>::Input) -> Result<Option<Outcome<M>>, LearnError> {
        let results = if self.leads { EvalResults::All } else { EvalResults::Nothing };
        let report = self.pipeline.eval_for(M::batch(&item), results)?;
        let output = self.leads.then(|| M::join(report.outputs()?)).transpose()?;
        Ok(output.map(|output| M::outcome(item, output)))
    }

    /// Brings what the optimizer does not step back into the learner's model.
    pub(crate) fn settle(&mut self, learner: &mut Learner<M>) -> Result<(), LearnError> {
        if self.others.is_empty() {
            return Ok(());
        }
        let weights = named_weights(&mut self.pipeline, &self.ids)?.into_iter().flatten();
        let others = weights.filter(|weight| self.others.contains(&weight.id));
        let others: HashMap<_, _> = others.map(|weight| (weight.id, weight.value)).collect();
        learner.load_model(with_weights(learner.model(), &others).into_record());
        Ok(())
    }

    /// Does any process stop here, and why? All must be at the same place with the same values, which `place` says in words.
    pub(crate) fn agree(&mut self, own: Stop, place: String) -> Result<Stop, LearnError> {
        let rows = self.pipeline.exchange((own, place))?;
        let odd = rows.iter().position(|(_, place)| *place != rows[0].1);
        match odd {
            Some(rank) => Err(LearnError::Diverged { rank, theirs: rows[rank].1.clone(), first: rows[0].1.clone() }),
            None => Ok(rows.into_iter().find_map(|(stop, _)| stop)),
        }
    }

    /// Are there other processes?
    pub(crate) fn is_one_of_several(&self) -> bool {
        self.several
    }

    /// What rank 0 decided.
    pub(crate) fn as_first(&mut self, own: bool) -> Result<bool, LearnError> {
        Ok(self.pipeline.exchange(own)?.first().copied().unwrap_or(own))
    }

    /// Ends the job of all processes.
    pub(crate) fn leave(&mut self, reason: impl Display) {
        self.pipeline.leave(reason);
    }
}

/// All parameters and buffers of the stages, under the learner's ids.
fn named_weights(
    pipeline: &mut Pipeline,
    ids: &HashMap<ParamId, ParamId>,
) -> Result<Vec<Vec<NamedWeight>>, LearnError> {
    let mut weights = pipeline.named_weights()?;
    weights.iter_mut().flatten().for_each(|weight| weight.id = ids.get(&weight.id).copied().unwrap_or(weight.id));
    Ok(weights)
}

/// The device of the model's first parameter, without autodiff, where items are made.
pub(crate) fn data_device<M: PipelineModel>(learner: &Learner<M>) -> Device {
    learner.model().devices().into_iter().next().unwrap_or_default().inner()
}
