//! An optimizer step over a module whose parameters go by their names in the whole model.
//!
//! Guarantees: groups of parameters (Burn's `ParamGroup`), which have their own optimizers and learning rates, match
//! the model's names, not the paths inside a stage. So they mean the same on any number of ranks. If the optimizer
//! panics, no parameter is lost: the one being stepped, and those after it, keep their values.
//!
//! Burn's optimizer goes through a module with a mapper and joins the names that it enters to a path. [`InModel`]
//! puts its own mapper between the two: it hides the path inside the stage, and enters each parameter by its name in
//! the model.

use super::gradients::{GradientStore, collected};
use super::names::Names;
use crate::payload::AnyTensor;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Flag, Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Bool, Device, Int, Tensor};
use parking_lot::Mutex;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// A panic that was caught.
pub(in crate::stage) type Panic = Box<dyn Any + Send>;

/// Steps a module's parameters, each according to the groups of its name in the model. Returns the module, and the
/// optimizer's panic if it panicked.
pub(in crate::stage) fn step_in_model<M: Module>(
    optimizer: &mut ModuleOptimizer,
    learning_rate: ModuleLearningRate,
    module: M,
    gradients: GradientsParams,
    names: &Names,
) -> (M, Option<Panic>) {
    let panic = Mutex::new(None);
    let module = optimizer.step(learning_rate, InModel { module, names, panic: &panic }, gradients).module;
    (module, panic.into_inner())
}

/// Steps a made-up module with these gradients, and unwinds if the optimizer panics.
pub(super) fn step_made_up<M: Module>(
    optimizer: &mut ModuleOptimizer,
    learning_rate: f64,
    module: M,
    gradients: impl IntoIterator<Item = (ParamId, AnyTensor)>,
    names: &Names,
) -> M {
    let mut store = GradientStore::default();
    gradients.into_iter().for_each(|(id, gradient)| store.set(id, gradient));
    let gradients = collected(&module, &mut store);
    match step_in_model(optimizer, learning_rate.into(), module, gradients, names) {
        (stepped, None) => stepped,
        (_, Some(panic)) => resume_unwind(panic),
    }
}

/// A module as mappers see it in the whole model.
#[derive(Clone, Debug)]
struct InModel<'a, M> {
    module: M,
    names: &'a Names,
    panic: &'a Mutex<Option<Panic>>,
}

impl<M: Module> InModel<'_, M> {
    fn with(self, change: impl FnOnce(M) -> M) -> Self {
        Self { module: change(self.module), names: self.names, panic: self.panic }
    }
}

impl<M: Module> Module for InModel<'_, M> {
    fn collect_devices(&self, devices: Vec<Device>) -> Vec<Device> {
        self.module.collect_devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        self.with(|module| module.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        self.with(|module| module.to_device(device))
    }

    fn train(self) -> Self {
        self.with(Module::train)
    }

    fn valid(&self) -> Self {
        Self { module: self.module.valid(), names: self.names, panic: self.panic }
    }

    fn materialize(self) -> Self {
        self.with(Module::materialize)
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.module.visit(visitor);
    }

    fn map<T: ModuleMapper>(self, mapper: &mut T) -> Self {
        let Self { module, names, panic } = self;
        let module = module.map(&mut Named { mapper, names, panic, path: Vec::new() });
        Self { module, names, panic }
    }
}

/// A mapper that sees names in the model instead of paths.
struct Named<'a, T> {
    mapper: &'a mut T,
    names: &'a Names,
    panic: &'a Mutex<Option<Panic>>,
    path: Vec<String>,
}

impl<T: ModuleMapper> ModuleMapper for Named<'_, T> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.panic.lock().is_some() {
            return param;
        }
        let name = self.names.of_parameter(param.id, &self.path.join("."));
        self.mapper.enter_module(&name, "");
        let kept = param.clone();
        // Unwind safety: the mapper is not used after a panic, and the caller reports it.
        let mapped = catch_unwind(AssertUnwindSafe(|| self.mapper.map_float(param)));
        self.mapper.exit_module(&name, "");
        mapped.unwrap_or_else(|panic| {
            *self.panic.lock() = Some(panic);
            kept
        })
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        self.mapper.map_int(param)
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        self.mapper.map_bool(param)
    }

    fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        self.mapper.map_flag(flag)
    }
}
