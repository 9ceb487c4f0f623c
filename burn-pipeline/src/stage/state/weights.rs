//! A module's weights and its optimizer's state, taken out and put back by parameter.
//!
//! Guarantees: what is taken out and put back is equal to the last bit, whatever the element type; parameters of
//! every kind, frozen ones and buffers (running statistics) are among them. A parameter that the module holds at
//! several paths is one weight with several names.
//!
//! Burn's optimizers give their state as a record whose entries are named by parameter id. Ids differ from run to
//! run and from cut to cut, so the record is taken apart by id here, and put together with the ids of the module
//! that it is for. The record's inside is only to be had in its stored form (`burn-pack`).

use super::names::Names;
use crate::stage::boundary::AnyTensor;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, Int, Tensor, TensorData};
use burn_pack::{Reader, Scalar, Writer};
use std::collections::{BTreeMap, HashMap};

/// A parameter or buffer of a module.
#[derive(Clone, Debug)]
pub struct NamedWeight {
    /// Its id in this module.
    pub id: ParamId,
    /// Its path in this module; the first one, where there are several.
    pub path: String,
    /// Its names in the whole model, one a path.
    pub names: Vec<String>,
    /// Its value, without autodiff.
    pub value: AnyTensor,
}

/// One entry of what an optimizer keeps for a parameter.
#[derive(Clone, PartialEq, Debug)]
pub enum StateValue {
    /// A tensor (a moment, say).
    Tensor(TensorData),
    /// A signed number.
    Int(i64),
    /// A number that is not negative (a step counter, say).
    UInt(u64),
    /// A floating-point number.
    Float(f64),
    /// A flag.
    Bool(bool),
}

/// What an optimizer keeps for one parameter, by field.
pub type ParameterState = BTreeMap<String, StateValue>;

/// What a stage is to take over: values by parameter, and the state of its optimizer.
#[derive(Debug, Default)]
pub struct StageState {
    /// Values, on the device of the parameter that each is for.
    pub weights: HashMap<ParamId, AnyTensor>,
    /// The optimizer's state by parameter; `None` leaves the optimizer as it is.
    pub optimizer: Option<HashMap<ParamId, ParameterState>>,
}

/// All parameters and buffers of a module, in visiting order.
pub fn named_weights<M: Module>(module: &M, names: &Names) -> Vec<NamedWeight> {
    // Running statistics keep their last update aside; this writes it to where it is read.
    drop(module.valid());
    let mut gather = Gather { path: Vec::new(), names, weights: Vec::new() };
    module.visit(&mut gather);
    gather.weights
}

struct Gather<'a> {
    path: Vec<String>,
    names: &'a Names,
    weights: Vec<NamedWeight>,
}

impl Gather<'_> {
    fn add<const D: usize, K: Basic>(&mut self, id: ParamId, value: Tensor<D, K>) {
        let path = self.path.join(".");
        let name = self.names.in_model(&path);
        match self.weights.iter_mut().find(|weight| weight.id == id) {
            Some(known) if known.names.contains(&name) => {}
            Some(known) => known.names.push(name),
            None => {
                let value = AnyTensor::new(value).inner();
                self.weights.push(NamedWeight { id, path, names: vec![name], value });
            }
        }
    }
}

impl ModuleVisitor for Gather<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.add(param.id, param.base());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.add(param.id, param.base());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.add(param.id, param.base());
    }
}

/// The module with other values; a parameter that has none keeps its own. Each stays trainable or frozen as it was,
/// and what was one leaf of autodiff's graph at several paths stays one.
pub fn with_weights<M: Module>(module: M, weights: &HashMap<ParamId, AnyTensor>) -> M {
    // What running statistics keep aside must not come back over the new value.
    drop(module.valid());
    module.map(&mut Replace { weights, leaves: HashMap::new() })
}

struct Replace<'a> {
    weights: &'a HashMap<ParamId, AnyTensor>,
    leaves: HashMap<ParamId, AnyTensor>,
}

impl Replace<'_> {
    /// The new value of a parameter that is not trained.
    fn value<const D: usize, K: Basic>(&self, id: ParamId, autodiff: bool) -> Option<Tensor<D, K>> {
        let weight = self.weights.get(&id)?.clone();
        let value = if autodiff { weight.leaf(Default::default(), false) } else { weight };
        Some(Tensor::from_dispatch(value.into_dispatch()))
    }
}

impl ModuleMapper for Replace<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(weight) = self.weights.get(&param.id) else { return param };
        let (trainable, device) = (param.is_require_grad(), param.lazy_device());
        let (id, _, mapper) = param.consume();
        let strategy = device.gradient_checkpointing_strategy();
        let leaf = self.leaves.entry(id).or_insert_with(|| match strategy {
            Some(strategy) => weight.clone().leaf(strategy, trainable),
            None => weight.clone(),
        });
        Param::from_mapped_value(id, Tensor::from_dispatch(leaf.clone().into_dispatch()), mapper)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let autodiff = param.lazy_device().is_autodiff();
        let Some(value) = self.value(param.id, autodiff) else { return param };
        let (id, _, mapper) = param.consume();
        Param::from_mapped_value(id, value, mapper)
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        let autodiff = param.lazy_device().is_autodiff();
        let Some(value) = self.value(param.id, autodiff) else { return param };
        let (id, _, mapper) = param.consume();
        Param::from_mapped_value(id, value, mapper)
    }
}

/// What an optimizer keeps, by parameter. Reads all of it to the host.
///
/// # Errors
/// What Burn says of the record.
pub fn optimizer_state(optimizer: &ModuleOptimizer) -> Result<HashMap<ParamId, ParameterState>, String> {
    let bytes = optimizer.to_record().into_bytes().map_err(|e| e.to_string())?;
    let reader = Reader::from_bytes(bytes).map_err(|e| e.to_string())?;
    let mut states: HashMap<ParamId, ParameterState> = HashMap::new();
    let mut keep = |entry: &str, value: StateValue| {
        let (id, field) = entry.split_once('.').ok_or_else(|| format!("`{entry}` belongs to no parameter"))?;
        let id: u64 = id.parse().map_err(|_| format!("`{entry}` belongs to no parameter"))?;
        states.entry(ParamId::from(id)).or_default().insert(field.to_owned(), value);
        Ok::<_, String>(())
    };
    for (entry, &scalar) in reader.scalars() {
        keep(entry, scalar.into())?;
    }
    for tensor in reader.into_tensors().map_err(|e| e.to_string())? {
        let (entry, dtype, shape, _, bytes) = tensor.into_parts().map_err(|e| e.to_string())?;
        keep(&entry, StateValue::Tensor(TensorData::from_bytes(bytes, shape, dtype)))?;
    }
    Ok(states)
}

/// The optimizer with other state: all of it, by parameter.
///
/// # Errors
/// If the optimizer does not keep what it is given (it is of another family than the one that gave it).
pub fn with_optimizer_state(
    optimizer: ModuleOptimizer,
    states: &HashMap<ParamId, ParameterState>,
    paths: &HashMap<ParamId, String>,
) -> Result<ModuleOptimizer, String> {
    let entries = |(id, state)| entries(id, state);
    let (mut tensors, mut scalars) = (Vec::new(), Vec::new());
    for (id, entry, value) in states.iter().flat_map(entries) {
        match value.scalar() {
            Ok(scalar) => scalars.push((entry, scalar)),
            Err(data) => {
                let (bytes, shape, dtype) = data.clone().into_parts();
                tensors.push(burn_pack::Tensor::new(entry, dtype, shape, Some(id), bytes));
            }
        }
    }
    let mut writer = Writer::new(tensors);
    for (entry, scalar) in &scalars {
        writer = writer.with_scalar(entry, *scalar);
    }
    for (id, path) in paths.iter().filter(|(id, _)| states.contains_key(id)) {
        writer = writer.with_metadata(&id.val().to_string(), path);
    }
    let bytes = writer.into_bytes().map_err(|e| e.to_string())?;
    let record = OptimizerRecord::from_bytes(bytes).map_err(|e| e.to_string())?;
    let loaded = optimizer.load_record(record);
    // A foreign state is skipped by Burn without a word.
    let kept = optimizer_state(&loaded)?;
    let fields = |state: Option<&ParameterState>| state.map(|s| s.keys().cloned().collect::<Vec<_>>());
    match states.iter().find(|(id, state)| fields(kept.get(id)) != fields(Some(state))) {
        None => Ok(loaded),
        Some((id, state)) => {
            let path = paths.get(id).cloned().unwrap_or_default();
            let saved = state.keys().cloned().collect::<Vec<_>>().join(", ");
            Err(format!("the optimizer does not keep what was saved for `{path}` ({saved}); is it of another family?"))
        }
    }
}

/// A parameter's entries as Burn's record names them.
fn entries<'a>(
    id: &'a ParamId,
    state: &'a ParameterState,
) -> impl Iterator<Item = (u64, String, &'a StateValue)> + use<'a> {
    state.iter().map(move |(field, value)| (id.val(), format!("{}.{field}", id.val()), value))
}

impl From<Scalar> for StateValue {
    fn from(scalar: Scalar) -> Self {
        match scalar {
            Scalar::Int(value) => StateValue::Int(value),
            Scalar::UInt(value) => StateValue::UInt(value),
            Scalar::Float(value) => StateValue::Float(value),
            Scalar::Bool(value) => StateValue::Bool(value),
        }
    }
}

impl StateValue {
    fn scalar(&self) -> Result<Scalar, &TensorData> {
        match self {
            StateValue::Tensor(data) => Err(data),
            StateValue::Int(value) => Ok(Scalar::Int(*value)),
            StateValue::UInt(value) => Ok(Scalar::UInt(*value)),
            StateValue::Float(value) => Ok(Scalar::Float(*value)),
            StateValue::Bool(value) => Ok(Scalar::Bool(*value)),
        }
    }
}
