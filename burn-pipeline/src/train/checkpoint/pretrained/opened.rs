//! Open stores, and what a rank found in them.
//!
//! Guarantees: a tensor is read only if a stage needs it. What does not fit is recorded, not adopted; the records of
//! all ranks together decide ([`Fit::of_all`]).

use super::Pretrained;
use super::adapters::Adapters;
use super::factors::adapts_rows_of;
use super::files::File;
use super::fit::Fit;
use super::rules::Table;
use super::source::Source;
use crate::payload::{AnyTensor, TensorKind};
use crate::stage::{ErasedStage, NamedWeight, StageState};
use crate::tensor_parallel::Holders;
use crate::train::checkpoint::error::CheckpointError;
use crate::train::checkpoint::tensors::digest;
use crate::train::checkpoint::types::converted;
use burn::store::burn_pack::Tensor as Stored;
use burn::store::{ModuleAdapter, ModuleContext, bridge};
use burn::tensor::{DType, Shape, TensorData};
use std::collections::{BTreeMap, BTreeSet};

/// Why two stores may hold one name.
const RENUMBERED: &str =
    "; if both are `PytorchStore`s, each numbers its file's layers from 0: set `map_indices_contiguous(false)`";

/// Open stores, and what was found in them so far.
pub(in crate::train::checkpoint) struct Opened<'a> {
    from: &'a Pretrained,
    /// Each file, and the index of its store.
    files: Vec<(usize, File)>,
    /// The file of each stored tensor.
    places: BTreeMap<String, usize>,
    /// What the rules make of the stored tensors.
    tensors: Table,
    /// What the folder says of its adapters, if it holds adapters alone.
    pub(in crate::train::checkpoint) adapters: Option<Adapters>,
    pub(in crate::train::checkpoint) fit: Fit,
}

impl<'a> Opened<'a> {
    /// Opens the stores.
    pub(in crate::train::checkpoint) fn new(from: &'a Pretrained) -> Result<Self, CheckpointError> {
        let (mut files, mut places) = (Vec::new(), BTreeMap::new());
        for (store, open) in from.stores.iter().enumerate() {
            let failed = |message| CheckpointError::Store { store, message };
            for file in open().map_err(failed)? {
                for name in &file.names {
                    if places.insert(name.clone(), files.len()).is_some() {
                        return Err(failed(format!("an earlier store holds `{name}` too{RENUMBERED}")));
                    }
                }
                files.push((store, file));
            }
        }
        let (tensors, matched) = from.rules.apply(places.keys().cloned())?;
        // Rules of a base's other layers need not match adapters; the first rule is PEFT's own.
        if from.adapters.is_none() || matched.first() != Some(&true) {
            from.rules.all_matched(&matched)?;
        }
        let adapters = from.adapters.as_ref().map(Adapters::read).transpose()?;
        let mut opened = Self { from, files, places, tensors, adapters, fit: Fit::default() };
        opened.fit.idle = from.adapter.is_some().then(String::new);
        let used = |source: &Source| !source.names().into_iter().all(|name| from.ignores(name));
        let names = opened.tensors.iter().filter(|(_, source)| used(source)).map(|(name, _)| name);
        opened.fit.unused = names.map(|name| (name.clone(), format!("{name}{}", opened.stored_as(name)))).collect();
        Ok(opened)
    }

    /// Returns the values of a stage's parameters; of cut ones, this rank's pieces. What does not fit is recorded and
    /// left out. `copies` returns the names of all copies of a tied parameter, by a path; `scales` has those of the
    /// stage's adapters.
    pub(in crate::train::checkpoint) fn state_for(
        &mut self,
        held: &dyn ErasedStage,
        holders: Holders<'_>,
        copies: impl Fn(&str) -> Vec<String>,
        scales: &BTreeMap<String, f64>,
    ) -> Result<StageState, CheckpointError> {
        let mut state = StageState::default();
        for mut weight in held.named_weights() {
            let copies = copies(&weight.path);
            let found = self.find(&weight, &copies);
            for name in &found {
                self.fit.unused.remove(name);
                if !weight.names.contains(name) && !copies.contains(name) {
                    // The adapter produced this name.
                    self.fit.idle = None;
                }
            }
            let Some(first) = found.first() else {
                if !weight.names.iter().chain(&copies).any(|name| (self.from.optional)(name)) {
                    self.fit.missing.insert(weight.names.swap_remove(0));
                }
                continue;
            };
            let shape = holders.whole_shape(weight.id, weight.value.shape());
            // Before its shape is compared: that of another rank differs too.
            if let Some(adapters) = &self.adapters {
                adapters.compare(&weight, scales)?;
            }
            let Some(data) = self.read(first, &weight, &shape)? else { continue };
            for other in &found[1..] {
                if self.read(other, &weight, &shape)?.is_some_and(|other| other.as_bytes() != data.as_bytes()) {
                    return Err(CheckpointError::Copies { first: first.clone(), second: other.clone() });
                }
            }
            self.keep_digest(&weight, &copies, &data);
            let (name, turn) = (&weight.names[0], self.tensors.get(first).and_then(Source::turn));
            match adapts_rows_of(name) {
                Some(adapted) if self.adapters.is_some() => drop(self.fit.adapted.insert(adapted.to_owned(), turn)),
                Some(adapted) => drop(self.fit.with_base.insert(adapted.to_owned())),
                None => drop(self.fit.turned.insert(name.clone(), turn)),
            }
            let whole = AnyTensor::from_data(data, &weight.value.device());
            state.weights.insert(weight.id, holders.own_piece(weight.id, whole));
        }
        Ok(state)
    }

    fn keep_digest(&mut self, weight: &NamedWeight, copies: &[String], data: &TensorData) {
        let (name, digest) = (weight.names[0].clone(), digest(data.clone()));
        if let Some(first) = copies.first().filter(|_| copies.len() > 1) {
            self.fit.tied.entry(first.clone()).or_default().insert(name.clone(), digest.clone());
        }
        self.fit.digests.insert(name, digest);
    }

    /// The names under which a parameter is stored: its own, or else those of copies of it.
    fn find(&self, weight: &NamedWeight, copies: &[String]) -> Vec<String> {
        let stored = |name: &String| self.tensors.contains_key(name);
        let under =
            |name: &String| Some(name.clone()).filter(stored).or_else(|| self.alternative(name, weight).filter(stored));
        let found = |names: &[String]| names.iter().filter_map(under).collect::<BTreeSet<String>>();
        let own = found(&weight.names);
        (if own.is_empty() { found(copies) } else { own }).into_iter().collect()
    }

    /// The tensor of this name, as the rules make it, and the index of its store; `None` if its parts do not fit, which
    /// is recorded.
    fn tensor(&mut self, name: &str) -> Result<Option<(usize, Stored)>, CheckpointError> {
        let Some(source) = self.tensors.get(name).cloned() else { return Ok(None) };
        let (mut needed, mut first) = (Vec::new(), None);
        for stored in source.names() {
            let Some((store, file)) = self.places.get(stored).and_then(|&place| self.files.get_mut(place)) else {
                continue;
            };
            first = first.or(Some(*store));
            needed.push(file.tensor(stored).map_err(|message| CheckpointError::Store { store: *store, message })?);
        }
        match source.tensor(&mut needed.into_iter()) {
            Ok(tensor) => Ok(first.map(|store| (store, tensor))),
            Err(message) => {
                self.fit.mismatched.insert(format!("`{name}`{}: {message}", self.stored_as(name)));
                Ok(None)
            }
        }
    }

    /// What a message adds to a name, if the stored tensors have other names or are in a folder's files.
    fn stored_as(&self, name: &str) -> String {
        let stored = self.tensors.get(name).map(Source::names).unwrap_or_default();
        let file = |stored: &str| self.places.get(stored).and_then(|&place| self.files.get(place)?.1.name());
        let said = |stored: &&str| match file(stored) {
            Some(file) => format!("`{stored}` in {file}"),
            None => format!("`{stored}`"),
        };
        let is_plain = stored == [name] && file(name).is_none();
        let said: Vec<String> = stored.iter().map(said).collect();
        if is_plain { String::new() } else { format!(" (stored as {})", said.join(", ")) }
    }

    /// The name with the last part that the adapter uses for the parameter.
    fn alternative(&self, name: &str, weight: &NamedWeight) -> Option<String> {
        let (_, parameter) = split(&weight.path);
        let module = ModuleContext::new(&weight.containers).module_type()?;
        let other = self.from.adapter.as_ref()?.get_alternative_param_name(parameter, module)?;
        Some(format!("{}{other}", split(name).0))
    }

    /// The parameter's values in its own layout and element type; `None` if they do not fit, which is recorded.
    fn read(&mut self, name: &str, weight: &NamedWeight, shape: &Shape) -> Result<Option<TensorData>, CheckpointError> {
        let Some((store, stored)) = self.tensor(name)? else { return Ok(None) };
        let stored_as = self.stored_as(name);
        let read = |tensor: Stored| {
            let failed = |error| CheckpointError::Store { store, message: format!("`{name}`{stored_as}: {error}") };
            bridge::into_data(tensor).map_err(failed)
        };
        let (mut tensor, shown) = (stored.clone(), shown(weight));
        if let Some(adapter) = &self.from.adapter {
            tensor.name.clone_from(&shown);
            tensor = adapter.adapt(tensor, ModuleContext::new(&weight.containers));
        }
        let is_changed = tensor.name != shown || (&tensor.shape, tensor.dtype) != (&stored.shape, stored.dtype);
        let value = &weight.value;
        if tensor.shape != *shape || !becomes(tensor.dtype, value.kind()) {
            let wanted = format!("{:?} of {:?}", shape.to_vec(), value.dtype());
            let stored = format!("{:?} of {:?}", tensor.shape.to_vec(), tensor.dtype);
            let own = &weight.names[0];
            self.fit.mismatched.insert(format!("`{name}`{stored_as} is {stored}, the model's `{own}` is {wanted}"));
            return Ok(None);
        }
        let data = read(tensor)?;
        // A permutation keeps name and shape.
        if self.fit.idle.is_some() {
            let is_changed = is_changed || data.as_bytes() != read(stored)?.as_bytes();
            self.fit.idle = (!is_changed).then_some(shown);
        }
        converted(name, data, value.dtype()).map(Some)
    }
}

/// A weight of this shape in the form of a store's tensor, read from its device only when its values are needed.
pub(in crate::train::checkpoint) fn adapted(weight: NamedWeight, shape: Shape, adapter: &dyn ModuleAdapter) -> Stored {
    let shown = shown(&weight);
    let NamedWeight { mut names, containers, value, .. } = weight;
    let (name, dtype) = (names.swap_remove(0), value.dtype());
    let read = move || value.to_data().map_err(burn::store::burn_pack::Error::ValidationError);
    let mut tensor =
        adapter.adapt(bridge::deferred(shown.clone(), dtype, shape, None, read), ModuleContext::new(&containers));
    let (from, to) = (split(&shown).1, split(&tensor.name).1);
    tensor.name = if from == to { name } else { format!("{}{to}", split(&name).0) };
    tensor
}

/// The name under which an adapter sees a weight: that in the whole model, with the last part of its path, by which
/// adapters recognise a module's parameter.
fn shown(weight: &NamedWeight) -> String {
    let name = weight.names.first().unwrap_or(&weight.path);
    format!("{}{}", split(name).0, split(&weight.path).1)
}

/// Splits a path before its last part: `blocks.0.` and `weight`.
fn split(path: &str) -> (&str, &str) {
    path.split_at(path.rfind('.').map_or(0, |dot| dot + 1))
}

/// Returns true if values of this element type can be converted to a parameter of this kind.
fn becomes(stored: DType, kind: TensorKind) -> bool {
    match kind {
        TensorKind::Float => stored.is_float(),
        TensorKind::Int => stored.is_int() || stored.is_uint(),
        // Formats without booleans store them as integers.
        TensorKind::Bool => stored.is_bool() || matches!(stored, DType::U8 | DType::U32),
    }
}
