//! The modules that a stage holds of one entry of the list, as a Burn module.
//!
//! Guarantees: a parameter's path is its name in the whole model, whichever layers of the entry are here:
//! `head.weight`, or `blocks.4.weight` if the entry is repeated.

use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor};
use burn::tensor::Device;
use std::sync::Arc;

/// The modules that a stage holds of one entry: consecutive ones, none, or all.
#[derive(Clone, Debug)]
pub(super) struct Entry<M> {
    pub(super) name: Arc<str>,
    pub(super) repeated: bool,
    /// The first one's index in the entry.
    pub(super) first: usize,
    pub(super) modules: Vec<M>,
}

/// The type of a list, and of the whole, as Burn names those of its own modules.
const LIST: &str = "Vec";
const STRUCT: &str = "Struct:Sequential";

impl<M: Module> Entry<M> {
    /// Changes each module; the function also gets its position in the entry.
    pub(super) fn changed(self, mut change: impl FnMut(M, usize) -> M) -> Self {
        let modules = self.modules.into_iter().zip(self.first..);
        Self { modules: modules.map(|(module, position)| change(module, position)).collect(), ..self }
    }
}

impl<M: Module> Module for Entry<M> {
    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        for (position, module) in (self.first..).zip(&self.modules) {
            let position = position.to_string();
            visitor.enter_module(&self.name, STRUCT);
            if self.repeated {
                visitor.enter_module(&position, LIST);
            }
            module.visit(visitor);
            if self.repeated {
                visitor.exit_module(&position, LIST);
            }
            visitor.exit_module(&self.name, STRUCT);
        }
    }

    fn map<Mapper: ModuleMapper>(self, mapper: &mut Mapper) -> Self {
        let (name, repeated) = (self.name.clone(), self.repeated);
        self.changed(|module, position| {
            let position = position.to_string();
            mapper.enter_module(&name, STRUCT);
            if repeated {
                mapper.enter_module(&position, LIST);
            }
            let module = module.map(mapper);
            if repeated {
                mapper.exit_module(&position, LIST);
            }
            mapper.exit_module(&name, STRUCT);
            module
        })
    }

    fn collect_devices(&self, devices: Devices) -> Devices {
        self.modules.iter().fold(devices, |devices, module| module.collect_devices(devices))
    }

    fn fork(self, device: &Device) -> Self {
        self.changed(|module, _| module.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        self.changed(|module, _| module.to_device(device))
    }

    fn train(self) -> Self {
        self.changed(|module, _| module.train())
    }

    fn valid(&self) -> Self {
        self.clone().changed(|module, _| module.valid())
    }

    fn materialize(self) -> Self {
        self.changed(|module, _| module.materialize())
    }
}
