//! Weights that another program stored, fitted to a model.
//!
//! Guarantees: every parameter and buffer of the model gets a stored tensor, and every stored tensor is used, except
//! those that the user excludes. One error lists everything that does not fit. A tensor is read only if a stage needs
//! it.
//!
//! 1. Every rank opens the stores. Burn's stores list names, shapes and element types, and map the files.
//! 2. A parameter is looked up by its names in the model ([`Names`](crate::stage::Names)), then by those that the
//!    adapter gives it (`gamma` is PyTorch's `weight`); a copy of a tied parameter also by the name of its first copy.
//! 3. The adapter changes its layout according to the surrounding module: PyTorch's linear layers are transposed. It
//!    sees the parameter's name in the model, so code for one layer works with any cut. An adapter that changes nothing
//!    anywhere is an error, because it was written for other names.
//! 4. The values are converted to the parameter's element type.

use super::error::CheckpointError;
use crate::payload::{AnyTensor, TensorKind};
use crate::stage::{ErasedStage, NamedWeight, StageState};
use crate::tensor_parallel::Holders;
use burn::store::burn_pack::Tensor as Stored;
use burn::store::{ModuleAdapter, ModuleContext, ModuleStore, bridge};
use burn::tensor::{DType, Shape, TensorData};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Open = Arc<dyn Fn() -> Result<BTreeMap<String, Stored>, String> + Send + Sync>;
type Which = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Weights that another program stored, for [`Pipeline::load_pretrained`](crate::train::Pipeline::load_pretrained).
///
/// ```no_run
/// # fn load(pipeline: &mut burn_pipeline::Pipeline) -> Result<(), burn_pipeline::train::CheckpointError> {
/// use burn::store::{PyTorchToBurnAdapter, SafetensorsStore};
/// use burn_pipeline::train::Pretrained;
///
/// let weights = Pretrained::new(|| SafetensorsStore::from_file("model-00001-of-00002.safetensors"))
///     .and(|| SafetensorsStore::from_file("model-00002-of-00002.safetensors"))
///     .adapter(PyTorchToBurnAdapter)
///     .ignored(|name| name.ends_with("rotary_emb.inv_freq"));
/// pipeline.load_pretrained(&weights)
/// # }
/// ```
#[derive(Clone)]
pub struct Pretrained {
    stores: Vec<Open>,
    adapter: Option<Box<dyn ModuleAdapter>>,
    optional: Which,
    ignored: Which,
}

impl std::fmt::Debug for Pretrained {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (stores, adapted) = (self.stores.len(), self.adapter.is_some());
        f.debug_struct("Pretrained").field("stores", &stores).field("adapted", &adapted).finish_non_exhaustive()
    }
}

impl Pretrained {
    /// Loads from a Burn store (`SafetensorsStore`, `PytorchStore`, `BurnpackStore`). Every rank opens one. Of the
    /// store's settings only renaming has an effect; filters and adapters have none.
    pub fn new<S: ModuleStore>(open: impl Fn() -> S + Send + Sync + 'static) -> Self {
        let none: Which = Arc::new(|_| false);
        Self { stores: Vec::new(), adapter: None, optional: none.clone(), ignored: none }.and(open)
    }

    /// Adds another store, for models in several files.
    pub fn and<S: ModuleStore>(mut self, open: impl Fn() -> S + Send + Sync + 'static) -> Self {
        self.stores.push(Arc::new(move || open().get_all_tensors().cloned().map_err(|error| error.to_string())));
        self
    }

    /// Sets an adapter that changes layouts and the names inside modules: `PyTorchToBurnAdapter` for PyTorch's files.
    /// It sees a tensor under the parameter's name in the whole model ([`Names`](crate::stage::Names)), with the last
    /// part as the module names it (`gamma`).
    pub fn adapter(mut self, adapter: impl ModuleAdapter + 'static) -> Self {
        self.adapter = Some(Box::new(adapter));
        self
    }

    /// Selects parameters, by their names in the model, that keep their values if none are stored: a new head, for
    /// example.
    pub fn optional(mut self, which: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.optional = Arc::new(which);
        self
    }

    /// Selects stored tensors, by their names, that the model need not use.
    pub fn ignored(mut self, which: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.ignored = Arc::new(which);
        self
    }

    /// Opens the stores.
    pub(super) fn open(&self) -> Result<Opened<'_>, CheckpointError> {
        let mut stored = BTreeMap::new();
        for (store, open) in self.stores.iter().enumerate() {
            let failed = |message| CheckpointError::Store { store, message };
            for (name, tensor) in open().map_err(failed)? {
                if stored.contains_key(&name) {
                    return Err(failed(format!("an earlier store holds `{name}` too")));
                }
                stored.insert(name, (store, tensor));
            }
        }
        let unused = stored.keys().filter(|name| !(self.ignored)(name)).cloned().collect();
        let idle = self.adapter.is_some().then(String::new);
        Ok(Opened { from: self, stored, fit: Fit { unused, idle, ..Fit::default() } })
    }
}

/// What one rank found. The fits of all ranks decide.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(super) struct Fit {
    /// Parameters that are not stored.
    missing: BTreeSet<String>,
    /// Stored tensors of another shape or kind, as text.
    mismatched: BTreeSet<String>,
    /// Stored tensors that no stage of the rank used.
    unused: BTreeSet<String>,
    /// As long as the adapter has changed nothing: a name that it was shown.
    idle: Option<String>,
}

impl Fit {
    /// Checks that the stores fit the model, from the fits of all ranks.
    ///
    /// # Errors
    /// Returns [`CheckpointError::Pretrained`], which lists what does not fit, or [`CheckpointError::IdleAdapter`] if
    /// an adapter changed nothing.
    pub(super) fn of_all(fits: Vec<Fit>) -> Result<(), CheckpointError> {
        let all = fits.into_iter().reduce(|mut all, mut next| {
            all.missing.append(&mut next.missing);
            all.mismatched.append(&mut next.mismatched);
            all.unused.retain(|name| next.unused.contains(name));
            all.idle = all.idle.zip(next.idle).map(|(one, other)| if one.is_empty() { other } else { one });
            all
        });
        let Fit { missing, mismatched, unused, idle } = all.unwrap_or_default();
        if missing.is_empty() && mismatched.is_empty() && unused.is_empty() {
            return idle.map_or(Ok(()), |shown| Err(CheckpointError::IdleAdapter { shown }));
        }
        let list = |names: BTreeSet<String>| names.into_iter().collect();
        Err(CheckpointError::Pretrained { missing: list(missing), mismatched: list(mismatched), unused: list(unused) })
    }
}

/// Open stores, and what was found in them so far.
pub(super) struct Opened<'a> {
    from: &'a Pretrained,
    /// Each tensor, and the index of its store.
    stored: BTreeMap<String, (usize, Stored)>,
    pub(super) fit: Fit,
}

impl Opened<'_> {
    /// Returns the values of a stage's parameters; of cut ones, this rank's pieces. What does not fit is recorded and
    /// left out.
    ///
    /// # Errors
    /// Returns [`CheckpointError`] if a tensor cannot be read, or a parameter is stored twice with different values.
    pub(super) fn state_for(
        &mut self,
        held: &dyn ErasedStage,
        holders: Holders<'_>,
    ) -> Result<StageState, CheckpointError> {
        let mut state = StageState::default();
        for mut weight in held.named_weights() {
            let first_copy = held.options().names.of_parameter(weight.id, &weight.path);
            weight.names.push(first_copy);
            let found = self.find(&weight);
            for name in &found {
                self.fit.unused.remove(name);
                if !weight.names.contains(name) {
                    // The adapter produced this name.
                    self.fit.idle = None;
                }
            }
            let Some(first) = found.first() else {
                if !weight.names.iter().any(|name| (self.from.optional)(name)) {
                    self.fit.missing.insert(weight.names.swap_remove(0));
                }
                continue;
            };
            let shape = holders.whole_shape(weight.id, weight.value.shape());
            let Some(data) = self.read(first, &weight, &shape)? else { continue };
            for other in &found[1..] {
                if self.read(other, &weight, &shape)?.is_some_and(|other| other.as_bytes() != data.as_bytes()) {
                    return Err(CheckpointError::Copies { first: first.clone(), second: other.clone() });
                }
            }
            let whole = AnyTensor::from_data(data, &weight.value.device());
            state.weights.insert(weight.id, holders.own_piece(weight.id, whole));
        }
        Ok(state)
    }

    /// The names under which a parameter is stored.
    fn find(&self, weight: &NamedWeight) -> Vec<String> {
        let stored = |name: &String| self.stored.contains_key(name);
        let under =
            |name: &String| Some(name.clone()).filter(stored).or_else(|| self.alternative(name, weight).filter(stored));
        let found: BTreeSet<String> = weight.names.iter().filter_map(under).collect();
        found.into_iter().collect()
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
        let Some((store, stored)) = self.stored.get(name).cloned() else { return Ok(None) };
        let read = |tensor: Stored| {
            let failed = |error| CheckpointError::Store { store, message: format!("`{name}`: {error}") };
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
            self.fit.mismatched.insert(format!("`{name}` is {stored}, the model's `{}` is {wanted}", weight.names[0]));
            return Ok(None);
        }
        let data = read(tensor)?;
        // A permutation keeps name and shape.
        if self.fit.idle.is_some() {
            let is_changed = is_changed || data.as_bytes() != read(stored)?.as_bytes();
            self.fit.idle = (!is_changed).then_some(shown);
        }
        Ok(Some(data.convert_dtype(value.dtype())))
    }
}

/// A weight of this shape in the form of a store's tensor, read from its device only when its values are needed.
pub(super) fn adapted(weight: NamedWeight, shape: Shape, adapter: &dyn ModuleAdapter) -> Stored {
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
