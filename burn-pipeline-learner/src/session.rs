//! A learner and the pipeline that computes for it.
//!
//! Guarantees: the learner's own model and optimizer are stepped, so Burn saves and returns the trained weights. The
//! pipeline's stages hold the same values after every step. When ranks are processes, each has a learner, and all hold
//! the same values.
//!
//! 1. Stages are clones of the learner's layers, so parameters are matched by id.
//! 2. [`Session::train`] runs forwards and backwards. It takes the gradients of the whole item, as the loss contract
//!    scales them.
//! 3. [`Session::step`] steps the learner's model with Burn's optimizer, and the stages take over the stepped values.
//!    On one device both are handles of one tensor.
//! 4. [`Session::settle`] copies what stages change themselves (running statistics, parameters that follow a rule) into
//!    the learner's model.
//! 5. When ranks are processes, gradients go to all of them, outputs to rank 0. [`Session::agree`] compares their
//!    progress.

use crate::error::LearnError;
use crate::model::PipelineModel;
use crate::parameters::{check_cut, gradients_of, ids_of, make_leaves, refuse_twice, trained_weights};
use burn::module::ParamId;
use burn::optim::GradientsParams;
use burn::tensor::Device;
use burn_pipeline::link::Link;
use burn_pipeline::payload::TensorKind;
use burn_pipeline::stage::{NamedWeight, with_weights};
use burn_pipeline::train::EvalResults;
use burn_pipeline::{Builder, Pipeline, StageContext};
use burn_train::{Learner, TrainStep};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::sync::Arc;

/// A learner and the pipeline that computes for it.
pub(crate) struct Session<M: PipelineModel> {
    pipeline: Pipeline,
    /// The learner's parameter ids, by those of every process: running statistics keep their own ids when a learner is
    /// loaded.
    ids: HashMap<ParamId, ParamId>,
    /// The ids of each stage's float parameters, in the pipeline's gradient order.
    places: Vec<Vec<ParamId>>,
    /// Parameters and buffers that the optimizer does not step.
    others: Vec<ParamId>,
    /// What losses observed since the last step; `None` if no item counted.
    pub(crate) observed: Option<Vec<Vec<f64>>>,
    /// True if this process gets outputs and emits events.
    pub(crate) leads: bool,
    /// True if there are other processes.
    several: bool,
    model: std::marker::PhantomData<fn() -> M>,
}

type Outcome<M> = <M as TrainStep>::Output;

/// The reason to stop that a process was given (itself optional); `None` if no process stops.
pub(crate) type Stop = Option<Option<String>>;

impl<M: PipelineModel> Session<M> {
    /// Builds the pipeline from the learner's model, with all ranks as threads, or with this process's rank.
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
        refuse_twice(&model)?;
        let cut = Arc::new(Mutex::new((model.clone(), BTreeMap::new())));
        let whole = Arc::downgrade(&cut);
        let stage = move |at: &StageContext| {
            // The builder may keep this closure, so it holds a weak reference: the initial weights are freed with
            // `cut`.
            let cut = whole.upgrade().expect("stages are made while the pipeline is built");
            let mut cut = cut.lock();
            // The first member of a tensor-parallel group joins the pieces.
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
        let checked = check_cut(&model, &weights, &cut.lock().1);
        checked.inspect_err(|error| pipeline.leave(error))?;
        let floats = |stage: &Vec<NamedWeight>| {
            stage.iter().filter(|weight| weight.value.kind() == TensorKind::Float).map(|weight| weight.id).collect()
        };
        let places = weights.iter().map(floats).collect();
        let held = weights.iter().flatten().map(|weight| weight.id);
        let others = held.filter(|id| !trained.contains_key(id)).collect();
        Ok(Self { pipeline, ids, places, others, observed: None, leads, several, model: std::marker::PhantomData })
    }

    /// Runs an item's forwards and backwards. Returns its gradients and, on rank 0, what metrics get.
    pub(crate) fn train(
        &mut self,
        learner: &Learner<M>,
        item: <M as TrainStep>::Input,
    ) -> Result<(GradientsParams, Option<Outcome<M>>), LearnError> {
        let report = self.pipeline.accumulate(M::batch(&item))?;
        let output = self.leads.then(|| M::join(report.outputs()?)).transpose()?;
        let stages = self.places.iter().zip(self.pipeline.take_gradients()?);
        let gradients = stages.flat_map(|(ids, gradients)| ids.iter().copied().zip(gradients));
        let gradients: HashMap<_, _> = gradients.filter_map(|(id, gradient)| Some((id, gradient?))).collect();
        // Gradients that are not finite are left out, and so are those of a loss that is not.
        let gradients = match report.skipped.is_some() || gradients.is_empty() {
            true => GradientsParams::new(),
            false => {
                self.observed.get_or_insert_default().extend(report.observed);
                gradients_of(&learner.model(), gradients)
            }
        };
        Ok((gradients, output.map(|output| M::outcome(item, output))))
    }

    /// Steps the learner's model, and gives the stages the new values. If all items since the last step were skipped,
    /// nothing changes.
    pub(crate) fn step(&mut self, learner: &mut Learner<M>, gradients: GradientsParams) -> Result<(), LearnError> {
        let Some(observed) = self.observed.take() else { return Ok(()) };
        learner.optimizer_step(gradients);
        let weights = trained_weights(&learner.model());
        Ok(self.pipeline.step_to(weights, observed)?)
    }

    /// Runs an item's forwards. Returns what metrics get, on rank 0.
    pub(crate) fn validate(&mut self, item: <M as TrainStep>::Input) -> Result<Option<Outcome<M>>, LearnError> {
        let results = if self.leads { EvalResults::All } else { EvalResults::Nothing };
        let report = self.pipeline.eval_for(M::batch(&item), results)?;
        let output = self.leads.then(|| M::join(report.outputs()?)).transpose()?;
        Ok(output.map(|output| M::outcome(item, output)))
    }

    /// Copies what the optimizer does not step into the learner's model.
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

    /// Returns the reason if any process stops here. All must be at the same place with the same values; `place`
    /// describes both, and is called if there are other processes.
    pub(crate) fn agree(&mut self, own: Stop, place: impl FnOnce() -> String) -> Result<Stop, LearnError> {
        let place = if self.several { place() } else { String::new() };
        let rows = self.pipeline.exchange((own, place))?;
        let odd = rows.iter().position(|(_, place)| *place != rows[0].1);
        match odd {
            Some(rank) => Err(LearnError::Diverged { rank, theirs: rows[rank].1.clone(), first: rows[0].1.clone() }),
            None => Ok(rows.into_iter().find_map(|(stop, _)| stop)),
        }
    }

    /// Returns rank 0's decision.
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

/// The device of the model's first parameter, without autodiff; items are made on it.
pub(crate) fn data_device<M: PipelineModel>(learner: &Learner<M>) -> Device {
    learner.model().devices().into_iter().next().unwrap_or_default().inner()
}
