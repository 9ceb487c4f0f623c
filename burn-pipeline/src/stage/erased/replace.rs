//! Replaces a stage's module between steps.
//!
//! Guarantees: nothing changes before every rank has found its module to fit. Parameters that keep their identifiers
//! keep their optimizer state; fresh ones start without, as on one device.
//!
//! 1. *Offered*: the caller's function makes a module from a copy of the current one. A parameter that stays must
//!    keep its shape and element type. A fresh one must be on the stage's device, of a type that the device computes
//!    in.
//! 2. *Adopted*: the new module replaces the old one, and the engine is chosen anew, so that no program of the old
//!    module is left.

use super::typed::Typed;
use super::weights::StageWeights;
use crate::payload::computes_in;
use crate::stage::error::StageError;
use crate::stage::module::Stage;
use crate::stage::state::{
    NamedParameter, NamedWeight, as_leaves, each_float, named_parameters, named_weights, trained, unshared,
    with_weights,
};
use burn::module::{Module, ParamId};
use burn::tensor::{DType, Device};
use std::any::Any;
use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};

/// Makes the new module from the old one.
pub(crate) struct Change<M>(pub(crate) Box<dyn Fn(M) -> M>);

/// Makes the new module of one layer of a list from its old one, which is in an `Option`, and its position. Returns
/// false if the old one has another type.
pub(crate) struct LayerChange {
    pub(crate) layer: usize,
    pub(crate) change: Box<ChangeInPlace>,
}

type ChangeInPlace = dyn Fn(&mut dyn Any, usize) -> bool;

/// The module that a [`Change`] or a [`LayerChange`] makes; `None` if it is for a module of another type.
fn changed<M: Stage>(old: M, change: &dyn Any) -> Option<M> {
    if let Some(Change(change)) = change.downcast_ref::<Change<M>>() {
        return Some(change(old));
    }
    let LayerChange { layer, change } = change.downcast_ref()?;
    let mut fits = false;
    let new = old.with_layer(*layer, &mut |module, position| fits = change(module, position));
    fits.then_some(new)
}

/// Why a stage's module is not replaced; the pipeline is unchanged.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum ReplaceError {
    /// Gradients of the old module's parameters were not applied yet.
    #[error(
        "there are unapplied gradients; call `step`, or drop them with `take_gradients`, before you replace the module"
    )]
    GradientsWait,
    /// Its parameters are sharded.
    #[error(
        "its parameters are sharded over data-parallel replicas, and the shards are fixed when the pipeline is built; \
         save a checkpoint, and build a pipeline with the new module"
    )]
    Sharded,
    /// A parameter that stays has another shape or element type.
    #[error(
        "`{path}` is now {got}, but had {expected} under this identifier; give it an identifier of its own (a new \
         `Param`), as the optimizer's state is for the old one"
    )]
    Spec { path: String, got: String, expected: String },
    /// A fresh parameter is on another device.
    #[error("`{path}` is on {got}, but the stage's device is {expected}; make it on `StageContext::device`")]
    Device { path: String, got: String, expected: String },
    /// A fresh parameter has an element type that the stage's device does not compute in.
    #[error("`{path}` has elements of {dtype:?}, in which {device} does not compute: {why}; make it in f32")]
    ElementType { path: Box<str>, dtype: DType, device: Box<str>, why: Box<str> },
    /// A shared parameter was removed or replaced.
    #[error(
        "`{path}` belongs to a shared parameter (`Builder::share`), which must stay; to change what is shared, save a \
         checkpoint, and build a pipeline with the new module"
    )]
    Shared { path: String },
    /// A parameter that is new, or trained from now on, is also on another stage.
    #[error(
        "`{path}` is also a parameter of another stage, by its identifier, and each copy would be trained on its own; \
         give it an identifier of its own"
    )]
    Elsewhere { path: String },
    /// The function made a different module on another rank.
    #[error("the ranks that hold a copy of it made modules with other parameters: {one} and {other}")]
    Unlike { one: String, other: String },
    /// A parameter that stages do not support.
    #[error(transparent)]
    Parameter(#[from] Box<StageError>),
    /// The function panicked.
    #[error("making the new module panicked: {message}")]
    Panic { message: String },
    /// Another rank refused.
    #[error("rank {rank} refused it: {message}")]
    Rank { rank: usize, message: String },
}

burn_pipeline_plan::debug_as_text!(ReplaceError);

/// A module that is offered as a replacement.
#[derive(Clone, Debug)]
pub(crate) struct Offered {
    /// The float parameters of the old module.
    pub(crate) before: Vec<NamedParameter>,
    /// The float parameters of the new module.
    pub(crate) after: Vec<NamedParameter>,
    /// Its other parameters, as text.
    pub(crate) buffers: Vec<String>,
}

impl Offered {
    /// The new module's parameters that the old one does not have, or does not train.
    pub(crate) fn fresh(&self) -> impl Iterator<Item = &NamedParameter> {
        let is_known = |new: &NamedParameter, old: &NamedParameter| old.id == new.id && old.trainable >= new.trainable;
        self.after.iter().filter(move |new| !self.before.iter().any(|old| is_known(new, old)))
    }

    /// Returns an error for the first parameter that stays but has another shape or element type.
    fn misfit(&self) -> Option<ReplaceError> {
        let known: HashMap<ParamId, &NamedParameter> = self.before.iter().map(|old| (old.id, old)).collect();
        let spec = |of: &NamedParameter| format!("{:?} of {:?}", of.shape, of.dtype);
        let misfit = |new: &NamedParameter| {
            let old = known.get(&new.id).filter(|old| (&old.shape, old.dtype) != (&new.shape, new.dtype))?;
            Some(ReplaceError::Spec { path: new.path.clone(), got: spec(new), expected: spec(old) })
        };
        self.after.iter().find_map(misfit)
    }
}

/// Replaces a stage's module.
pub(crate) trait ReplaceModule {
    /// Makes a module with a [`Change`] or a [`LayerChange`], and keeps it until it is adopted or withdrawn. Returns
    /// `None` if the stage's module has another type.
    fn offer_module(&mut self, change: &dyn Any, device: &Device) -> Result<Option<Offered>, ReplaceError>;
    /// Adopts the offered module, if there is one.
    fn adopt_module(&mut self);
    /// Drops the offered module.
    fn withdraw_module(&mut self);
}

impl<M: Stage> ReplaceModule for Typed<M> {
    fn offer_module(&mut self, change: &dyn Any, device: &Device) -> Result<Option<Offered>, ReplaceError> {
        let Ok(old) = self.whole() else { return Ok(None) };
        // Copies of a module share their running statistics, which the function may change before it fails.
        self.before_offer = self.forward_state().into_iter().map(|weight| (weight.id, weight.value)).collect();
        let Some(new) = changed(old.clone(), change) else { return Ok(None) };
        let (new, names) = (as_leaves(new, &trained(&old)).map_err(Box::new)?, &self.options.names);
        let others = named_weights(&new, names).into_iter().filter(|weight| !weight.value.dtype().is_float());
        let described =
            |NamedWeight { path, value, .. }| format!("`{path}` {:?} of {:?}", value.shape().to_vec(), value.dtype());
        let buffers = others.map(described).collect();
        let offered = Offered { before: named_parameters(&old, names), after: named_parameters(&new, names), buffers };
        if let Some(error) = offered.misfit() {
            return Err(error);
        }
        let devices = float_devices(&new);
        for fresh in offered.fresh() {
            computes_in(device, fresh.dtype).map_err(|why| {
                let (path, device) = (fresh.path.as_str().into(), format!("{:?}", device.clone().inner()).into());
                ReplaceError::ElementType { path, dtype: fresh.dtype, device, why: why.into() }
            })?;
            // Devices are equal with and without autodiff, but a parameter without autodiff would not be trained.
            let differs = |got: &&Device| *got != device || got.is_autodiff() != device.is_autodiff();
            let Some(got) = devices.get(&fresh.id).filter(differs) else { continue };
            let (path, got, expected) = (fresh.path.clone(), format!("{got:?}"), format!("{device:?}"));
            return Err(ReplaceError::Device { path, got, expected });
        }
        // The function may hold tensors of another thread.
        self.replacement = Some(unshared(&new));
        Ok(Some(offered))
    }

    fn adopt_module(&mut self) {
        let Some(new) = self.replacement.take() else { return };
        self.before_offer.clear();
        (self.forward_state, self.masters.ruled) = (OnceCell::new(), None);
        self.module = Ok(self.rounded(new));
        self.forget();
        self.make_engine();
    }

    fn withdraw_module(&mut self) {
        self.replacement = None;
        let before = std::mem::take(&mut self.before_offer);
        if !before.is_empty() {
            self.change(|module| with_weights(module, &before));
        }
    }
}

/// The device of each float parameter.
fn float_devices<M: Module>(module: &M) -> BTreeMap<ParamId, Device> {
    let mut devices = BTreeMap::new();
    each_float(module, |_, param| drop(devices.insert(param.id(), param.base().device())));
    devices
}
