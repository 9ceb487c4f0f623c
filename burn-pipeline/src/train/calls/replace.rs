//! Replaces a stage's module: for a head of another size, to freeze or unfreeze layers, to add an adapter.
//!
//! Guarantees: either every copy of the stage is replaced, and later steps, evaluations and checkpoints equal those of
//! a single-device loop that replaces the same layers between the same steps; or the stage keeps its module, and the
//! pipeline is unchanged.
//!
//! 1. Every rank that holds the stage makes the new module and keeps it aside ([`Offer`], in `offer`).
//! 2. The caller checks that all offers fit: copies are alike, and no new parameter is also on another stage.
//! 3. Every rank adopts its new module, or drops it ([`Finish`]); copies take the first one's weights, as at the start.
//!
//! The new module comes from a function that every rank runs on its own copy, because the whole model exists nowhere
//! and modules do not cross links.

use super::offer::{Finish, Make, Offer, RankOffer, all_fit};
use crate::layers::LayerContext;
use crate::stage::{Change, LayerChange, ReplaceError, Stage};
use crate::train::context::StageContext;
use crate::train::error::PipelineError;
use crate::train::features::Feature;
use crate::train::pipeline::Pipeline;
use burn::module::Module;
use std::any::{Any, type_name};
use std::sync::Arc;

impl Pipeline {
    /// Replaces the module of one stage, between two steps, by the result of `change` on a copy of it. `change` runs on
    /// every rank that holds the stage (both copies of a bidirectional placement, all data-parallel replicas); all
    /// copies then take the first one's weights. When ranks are processes, all make the call.
    ///
    /// The optimizer keeps its state of parameters whose ids stay, and starts anew with new parameters, which must be
    /// on [`StageContext::device`]. The stage's loss, names and options stay as they were. A checkpoint saved from now
    /// on fits pipelines with the new module. An [`AutoPipeline`](crate::train::AutoPipeline) no longer switches.
    ///
    /// ```no_run
    /// # use burn::module::Module;
    /// # use burn::nn::{Linear, LinearConfig};
    /// # use burn::tensor::Tensor;
    /// # use burn_pipeline::train::PipelineError;
    /// # use burn_pipeline::{Batch, Pipeline, Stage, StageContext};
    /// # #[derive(Module, Debug)]
    /// # struct Part { body: Linear, head: Linear }
    /// # impl Stage for Part {
    /// #     type Input = Tensor<2>;
    /// #     type Extra = ();
    /// #     type Output = Tensor<2>;
    /// #     fn forward(&self, x: Tensor<2>, _: ()) -> Tensor<2> {
    /// #         self.head.forward(self.body.forward(x))
    /// #     }
    /// # }
    /// # fn replace(pipeline: &mut Pipeline, batch: fn(usize) -> Batch) -> Result<(), PipelineError> {
    /// pipeline.step(batch(3), 0.1)?;
    /// // Five classes from here on.
    /// pipeline.replace_module(1, |part: Part, at: &StageContext| {
    ///     Part { head: LinearConfig::new(3, 5).init(&at.device), ..part }
    /// })?;
    /// pipeline.step(batch(5), 0.1)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`PipelineError::NoSuchModule`] if there is no such stage or its module is not an `M`, and
    /// [`PipelineError::Replace`] if the new module does not fit; nothing was changed. Returns [`PipelineError::Plan`],
    /// and training is refused from then on, if the module was replaced, but the pipeline was given a plan without the
    /// backward of a stage that now trains. If a rank fails, same as [`Pipeline::step`]. Copies of a tied parameter
    /// ([`Builder::share`](crate::Builder::share)) must be changed alike, with one call for each of their stages: the
    /// next step, save or export is refused if they differ.
    pub fn replace_module<M: Stage>(
        &mut self,
        stage: usize,
        change: impl Fn(M, &StageContext) -> M + Send + Sync + 'static,
    ) -> Result<(), PipelineError> {
        let change = Arc::new(change);
        let make = move |at: &StageContext| -> Box<dyn Any> {
            let (make, at) = (change.clone(), at.clone());
            Box::new(Change::<M>(Box::new(move |module| make(module, &at))))
        };
        self.replace(stage, type_name::<M>(), Arc::new(make))
    }

    /// Replaces the module of one layer of a list ([`Builder::layers`](crate::Builder::layers)), given by its index
    /// among all layers of the model, as [`Pipeline::replace_module`] replaces that of a stage.
    ///
    /// ```no_run
    /// # use burn::nn::{Linear, LinearConfig};
    /// # use burn_pipeline::layers::LayerContext;
    /// # fn replace(pipeline: &mut burn_pipeline::Pipeline) -> Result<(), burn_pipeline::train::PipelineError> {
    /// // Five classes from here on: layer 3 is the head.
    /// pipeline.replace_layer(3, |_: Linear, at: &LayerContext| LinearConfig::new(3, 5).init(&at.device))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Same as [`Pipeline::replace_module`]; [`PipelineError::NoSuchLayer`] if there is no such layer or its module is
    /// not an `M`.
    pub fn replace_layer<M: Module + 'static>(
        &mut self,
        layer: usize,
        change: impl Fn(M, &LayerContext) -> M + Send + Sync + 'static,
    ) -> Result<(), PipelineError> {
        let (change, wanted) = (Arc::new(change), type_name::<M>());
        let make = move |at: &StageContext| -> Box<dyn Any> {
            let (make, device) = (change.clone(), at.device.clone());
            let change = move |module: &mut dyn Any, position| {
                let Some(module) = module.downcast_mut::<Option<M>>() else { return false };
                *module = module.take().map(|old| make(old, &LayerContext { layer, position, device: device.clone() }));
                true
            };
            Box::new(LayerChange { layer, change: Box::new(change) })
        };
        let no_layer = || PipelineError::NoSuchLayer { layer, wanted };
        let stage = self.stages.of_layer(layer, self.cut.as_ref()).ok_or_else(no_layer)?;
        match self.replace(stage, wanted, Arc::new(make)) {
            Err(PipelineError::NoSuchModule { .. }) => Err(no_layer()),
            replaced => replaced,
        }
    }

    fn replace(&mut self, stage: usize, wanted: &'static str, make: Make) -> Result<(), PipelineError> {
        self.goes_with(Feature::ReplaceModule)?;
        let refused = |source| PipelineError::Replace { stage, source };
        let admitted = if self.training.is_mid_step() { Err(ReplaceError::GradientsWait) } else { Ok(()) };
        self.admit(admitted.map_err(refused))?;
        let offers = self.ask(Offer { stage, wanted, make, cut: self.cut.clone() })?;
        let offers: Result<Vec<RankOffer>, ReplaceError> = offers.into_iter().collect();
        let fits =
            offers.map_err(refused).and_then(|offers| match offers.iter().any(|offer| !offer.copies.is_empty()) {
                true => all_fit(&offers).map_err(refused),
                false => Err(PipelineError::NoSuchModule { stage, wanted }),
            });
        // Even a replacement that fails half-way may have changed the stages.
        self.is_as_built &= fits.is_err();
        let facts = self.ask(Finish { stage, adopt: fits.is_ok() })?;
        fits?;
        self.stages = self.stages.renewed(facts.concat());
        self.learns_metadata = self.settings.learns_metadata();
        let planned = self.plans.train_from(self.stages.first_trained());
        planned.map_err(|error| PipelineError::Plan(Box::new(error)))
    }
}
