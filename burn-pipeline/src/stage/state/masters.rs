//! Masters: the values of parameters that the optimizer steps, where the module computes with rounded copies.
//!
//! Guarantees: a module's copies are always the rounded masters; what is read, saved, loaded, exchanged and stepped
//! is the masters.
//!
//! 1. [`Masters::of`] finds the parameters whose type in the module is not the type of their master: f32 for half
//!    precision, else their own. State that forwards change (running statistics) is not rounded, nor is a frozen
//!    parameter that has the computed type already.
//! 2. [`Masters::take`] puts the masters into the module, for what changes them; [`Masters::round`] takes them out
//!    again and leaves copies.

use super::named::{NamedParameter, named_parameters};
use super::names::Names;
use super::weights::{float_weights, with_weights};
use crate::payload::AnyTensor;
use crate::stage::precision::Precision;
use burn::module::{Module, ParamId};
use burn::tensor::DType;
use std::collections::HashMap;

/// The masters of a stage's module.
#[derive(Debug, Default)]
pub(in crate::stage) struct Masters {
    /// The types of master and copy, by parameter.
    types: HashMap<ParamId, (DType, DType)>,
    values: HashMap<ParamId, AnyTensor>,
}

impl Masters {
    /// The masters of a module whose parameters have their own types. `state` is what forwards change.
    pub(in crate::stage) fn of<M: Module>(module: &M, precision: &Precision, names: &Names, state: &[ParamId]) -> Self {
        let types = |NamedParameter { id, path, dtype, trainable, .. }: NamedParameter| {
            let copy = precision.computed(id, &names.of_parameter(id, &path), dtype);
            let master = if trainable { AnyTensor::widest(dtype) } else { dtype };
            (!state.contains(&id) && master != copy).then_some((id, (master, copy)))
        };
        // Of several paths of a parameter, the first counts.
        let parameters = named_parameters(module, names).into_iter().rev();
        Self { types: parameters.filter_map(types).collect(), values: HashMap::new() }
    }

    /// The module with the masters in their places.
    pub(in crate::stage) fn whole<M: Module>(&self, module: M) -> M {
        if self.values.is_empty() { module } else { with_weights(module, &self.values) }
    }

    /// Like [`Masters::whole`], and gives the masters away until [`Masters::round`], so that they can be changed in
    /// place.
    pub(in crate::stage) fn take<M: Module>(&mut self, module: M) -> M {
        let values = std::mem::take(&mut self.values);
        if values.is_empty() { module } else { with_weights(module, &values) }
    }

    /// Takes the masters out of a module, and leaves their rounded copies.
    pub(in crate::stage) fn round<M: Module>(&mut self, module: M) -> M {
        if self.types.is_empty() {
            return module;
        }
        let mut copies = HashMap::new();
        for (id, value) in float_weights(&module) {
            if let Some(&(master, copy)) = self.types.get(&id) {
                copies.insert(id, value.clone().cast(copy));
                self.values.insert(id, value.cast(master));
            }
        }
        with_weights(module, &copies)
    }

    /// Returns true if the module has a rounded copy of this parameter.
    pub(in crate::stage) fn has(&self, id: ParamId) -> bool {
        self.values.contains_key(&id)
    }

    /// The master of a parameter, or its own value.
    pub(in crate::stage) fn value(&self, id: ParamId, own: AnyTensor) -> AnyTensor {
        self.values.get(&id).cloned().unwrap_or(own)
    }
}
