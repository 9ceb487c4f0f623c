//! Another module in a stage's place, between steps.
//!
//! Guarantees: nothing changes before every rank has found its module to fit. Parameters whose identifiers stay keep what the
//! optimizer knows of them; fresh ones start with nothing, as on one device.
//!
//! 1. *Offered*: the caller's function makes a module from a copy of the present one. A parameter that stays must keep shape
//!    and element type, and a fresh one must be on the stage's device, of a type that the device computes in.
//! 2. *Adopted*: the module takes the place, and the engine is chosen anew, so that no program of the old module is left.

use super::typed::Typed;
use crate::stage::boundary::computes_in;
use crate::stage::error::StageError;
use crate::stage::module::Stage;
use crate::stage::state::{
    NamedParameter, NamedWeight, as_leaves, named_parameters, named_weights, trained, with_weights,
};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, Device, Tensor};
use std::any::Any;
use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};

/// Makes a stage's module anew.
pub(crate) struct Change<M>(pub(crate) Box<dyn Fn(M) -> M>);

/// Why a stage keeps its module; the pipeline is as before.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum ReplaceError {
    /// Gradients were gathered for the old module's parameters.
    #[error("gradients wait for a step; call `step`, or drop them with `take_gradients`, and replace it then")]
    GradientsWait,
    /// Its parameters are cut into pieces.
    #[error(
        "its parameters are sharded over data-parallel replicas, and pieces are cut at the start; save a checkpoint, and build a pipeline with the new module"
    )]
    Sharded,
    /// A parameter stays, with another shape or element type.
    #[error(
        "`{path}` is now {got}, but had {expected} under this identifier; make it with an identifier of its own (a new `Param`), as the optimizer's state is for the old one"
    )]
    Spec { path: String, got: String, expected: String },
    /// A fresh parameter is on another device.
    #[error("`{path}` is on {got}, but the stage's device is {expected}; make it on `StageContext::device`")]
    Device { path: String, got: String, expected: String },
    /// A fresh parameter has an element type that the stage's device does not compute in.
    #[error("`{path}` has elements of {dtype:?}, in which {device} does not compute: {why}; make it in f32")]
    ElementType { path: Box<str>, dtype: DType, device: Box<str>, why: Box<str> },
    /// A shared parameter is no longer there, or another one is.
    #[error(
        "`{path}` belongs to a shared parameter (`Builder::share`), which has to stay; to share otherwise, save a checkpoint, and build a pipeline with the new module"
    )]
    Shared { path: String },
    /// A fresh parameter is on another stage, too.
    #[error(
        "`{path}` is a parameter of another stage, too, by its identifier, and each would be trained on its own; give it an identifier of its own"
    )]
    Elsewhere { path: String },
    /// The function made another module on another rank.
    #[error("the ranks that hold a copy of it made modules with other parameters: {one} and {other}")]
    Unlike { one: String, other: String },
    /// A parameter that a stage does not take.
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

/// What is offered in a module's place.
#[derive(Clone, Debug)]
pub(crate) struct Offered {
    /// The float parameters of the old module.
    pub(crate) before: Vec<NamedParameter>,
    /// Those of the new one.
    pub(crate) after: Vec<NamedParameter>,
}

impl Offered {
    /// The new module's parameters that the old one does not have.
    pub(crate) fn fresh(&self) -> impl Iterator<Item = &NamedParameter> {
        self.after.iter().filter(|new| !self.before.iter().any(|old| old.id == new.id))
    }

    /// The first parameter that stays and is not what it was.
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

/// Takes another module in.
pub(crate) trait ReplaceModule {
    /// Makes a module by a [`Change`], and keeps it until it is adopted or withdrawn. `None` if the stage's module has another
    /// type.
    fn offer_module(&mut self, change: &dyn Any, device: &Device) -> Result<Option<Offered>, ReplaceError>;
    /// Takes what was offered, if anything was.
    fn adopt_module(&mut self);
    /// Drops what was offered.
    fn withdraw_module(&mut self);
}

impl<M: Stage> ReplaceModule for Typed<M> {
    fn offer_module(&mut self, change: &dyn Any, device: &Device) -> Result<Option<Offered>, ReplaceError> {
        let (Some(Change(change)), Ok(old)) = (change.downcast_ref::<Change<M>>(), &self.module) else {
            return Ok(None);
        };
        let (new, names) = (as_leaves(change(old.clone()), &trained(old)).map_err(Box::new)?, &self.options.names);
        let offered = Offered { before: named_parameters(old, names), after: named_parameters(&new, names) };
        if let Some(error) = offered.misfit() {
            return Err(error);
        }
        let devices = float_devices(&new);
        for fresh in offered.fresh() {
            computes_in(device, fresh.dtype).map_err(|why| {
                let (path, device) = (fresh.path.as_str().into(), format!("{:?}", device.clone().inner()).into());
                ReplaceError::ElementType { path, dtype: fresh.dtype, device, why: why.into() }
            })?;
            // Devices are equal with and without autodiff, but without it a parameter would not be trained.
            let differs = |got: &&Device| *got != device || got.is_autodiff() != device.is_autodiff();
            let Some(got) = devices.get(&fresh.id.val()).filter(differs) else { continue };
            let (path, got, expected) = (fresh.path.clone(), format!("{got:?}"), format!("{device:?}"));
            return Err(ReplaceError::Device { path, got, expected });
        }
        // The function may hold tensors of another thread.
        let unshared = |weight: NamedWeight| (weight.id, weight.value.unshared());
        let values = named_weights(&new, &self.options.names).into_iter().map(unshared).collect();
        self.replacement = Some(with_weights(new, &values));
        Ok(Some(offered))
    }

    fn adopt_module(&mut self) {
        let Some(new) = self.replacement.take() else { return };
        self.module = Ok(new);
        self.forward_state = OnceCell::new();
        self.forget();
        let (split, splits, keep_outputs) = self.chosen;
        self.choose_engine(split, splits, keep_outputs);
    }

    fn withdraw_module(&mut self) {
        self.replacement = None;
    }
}

/// The device of each float parameter.
fn float_devices<M: Module>(module: &M) -> BTreeMap<u64, Device> {
    struct Devices(BTreeMap<u64, Device>);

    impl ModuleVisitor for Devices {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.insert(param.id.val(), param.val().device());
        }
    }

    let mut devices = Devices(BTreeMap::new());
    module.visit(&mut devices);
    devices.0
}
