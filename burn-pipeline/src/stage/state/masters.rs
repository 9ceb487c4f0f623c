//! Masters: the values of parameters that the optimizer steps, where the module computes with rounded copies.
//!
//! Guarantees: a module's copies are always the rounded masters; what is read, saved, loaded, exchanged and stepped
//! is the masters.
//!
//! 1. [`Masters::decide`] sets the types of each parameter's master and copy: a trained one's master is f32 where the
//!    module was built with half precision, else of the module's own type. A frozen one has no master of another type,
//!    unless it got one while it was trained, by a rule ([`Masters::widened`]), or from a checkpoint of a job in which
//!    it had one. The first of several names decides. State that forwards change (running statistics) is not rounded.
//! 2. A rule gets f32 of the frozen parameters that it may use. Those that it changed keep a master.
//! 3. [`Masters::take`] puts the masters into the module, for what changes them; [`Masters::round`] takes them out
//!    again and leaves copies.

use super::named::{NamedParameter, named_parameters};
use super::names::Names;
use super::weights::{float_weights, with_weights};
use crate::payload::AnyTensor;
use crate::stage::precision::Precision;
use burn::module::{Module, ParamId};
use burn::tensor::DType;
use std::collections::{HashMap, HashSet};

/// The element types of a parameter.
#[derive(Clone, Copy, Debug)]
struct Types {
    /// The type with which the module was built.
    own: DType,
    master: DType,
    copy: DType,
}

/// The masters of a stage's module.
#[derive(Debug, Default)]
pub(in crate::stage) struct Masters {
    types: HashMap<ParamId, Types>,
    /// The masters of parameters whose copies have another type.
    values: HashMap<ParamId, AnyTensor>,
    /// The parameters that the module's rule may use, once that is known.
    pub(in crate::stage) ruled: Option<HashSet<ParamId>>,
}

impl Masters {
    /// Sets the types of a module's parameters, which have their masters' types or, if they are new, their own. `state`
    /// is what forwards change.
    pub(in crate::stage) fn decide<M: Module>(
        &mut self,
        module: &M,
        precision: &Precision,
        names: &Names,
        state: &[ParamId],
    ) {
        let mut decided: HashSet<ParamId> = state.iter().copied().collect();
        for NamedParameter { id, path, dtype, trainable, .. } in named_parameters(module, names) {
            if decided.insert(id) {
                let own = self.types.get(&id).map_or(dtype, |types| types.own);
                let copy = precision.computed(id, &names.of_parameter(id, &path), own);
                // A frozen one keeps the type of its value: rounding it would lose what was trained.
                let master = if trainable { AnyTensor::widest(own) } else { dtype };
                self.types.insert(id, Types { own, master, copy });
            }
        }
    }

    /// The module with the masters in their places.
    pub(in crate::stage) fn whole<M: Module>(&self, module: M) -> M {
        if self.values.is_empty() { module } else { with_weights(module, &self.values) }
    }

    /// Like [`Masters::whole`], with frozen parameters that were built in half precision in f32 too, for a rule that
    /// computes with both.
    pub(in crate::stage) fn widened<M: Module>(&self, module: M) -> M {
        let module = self.whole(module);
        if self.types.is_empty() || self.ruled.as_ref().is_some_and(HashSet::is_empty) {
            return module;
        }
        let values =
            float_weights(&module).into_iter().filter(|(id, _)| self.is_ruled(*id) && self.is_frozen_half(*id));
        let values = values.map(|(id, value)| (id, value.widened())).collect();
        with_weights(module, &values)
    }

    /// A module after its rule. Frozen parameters that the rule did not change get their own type again. That is found
    /// the first time, and kept.
    pub(in crate::stage) fn narrowed<M: Module>(&mut self, module: M) -> M {
        if self.types.is_empty() || self.ruled.is_some() {
            return module;
        }
        let (mut narrow, mut changed) = (HashMap::new(), HashSet::new());
        for (id, value) in float_weights(&module).into_iter().filter(|(id, _)| self.is_frozen_half(*id)) {
            let own = value.clone().cast(self.types[&id].own);
            match own.clone().widened().digest().is_ok_and(|digest| value.digest() == Ok(digest)) {
                true => drop(narrow.insert(id, own)),
                false => drop(changed.insert(id)),
            }
        }
        self.ruled = Some(changed);
        with_weights(module, &narrow)
    }

    /// The frozen parameters in half precision that the module's rule may use; all of them until that is known.
    pub(in crate::stage) fn ruled_halves(&self) -> HashSet<ParamId> {
        self.types.keys().copied().filter(|&id| self.is_ruled(id) && self.is_frozen_half(id)).collect()
    }

    /// Returns true if the module's rule may use a parameter.
    fn is_ruled(&self, id: ParamId) -> bool {
        self.ruled.as_ref().is_none_or(|ruled| ruled.contains(&id))
    }

    /// Returns true if a parameter was built in half precision and has no master of another type.
    fn is_frozen_half(&self, id: ParamId) -> bool {
        self.types.get(&id).is_some_and(|types| types.master == types.own && AnyTensor::widest(types.own) != types.own)
    }

    /// Like [`Masters::whole`], and gives the masters away until [`Masters::round`], so that they can be changed in
    /// place.
    pub(in crate::stage) fn take<M: Module>(&mut self, module: M) -> M {
        let whole = self.whole(module);
        self.values.clear();
        whole
    }

    /// Takes the masters out of a module, and leaves their rounded copies.
    pub(in crate::stage) fn round<M: Module>(&mut self, module: M) -> M {
        if self.types.is_empty() {
            return module;
        }
        self.values.clear();
        let mut copies = HashMap::new();
        for (id, value) in float_weights(&module) {
            if let Some(&Types { master, copy, .. }) = self.types.get(&id).filter(|types| types.master != types.copy) {
                copies.insert(id, value.clone().cast(copy));
                self.values.insert(id, value.cast(master));
            }
        }
        with_weights(module, &copies)
    }

    /// The bytes of a parameter's master; 0 if it has no other than its own value.
    pub(in crate::stage) fn bytes_of(&self, id: ParamId) -> usize {
        self.values.get(&id).map_or(0, AnyTensor::bytes)
    }

    /// The master of a parameter, or its own value.
    pub(in crate::stage) fn value(&self, id: ParamId, own: AnyTensor) -> AnyTensor {
        self.values.get(&id).cloned().unwrap_or(own)
    }
}
