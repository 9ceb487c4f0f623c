//! An optimizer's state, taken out and put back by parameter.
//!
//! Guarantees: state that is taken out and put back is equal to the last bit, with its element type, or it is
//! refused.
//!
//! Burn's optimizers give their state as a record whose entries are named by parameter id. Ids differ from run to run
//! and from cut to cut, so the record is split by id here, and rebuilt with the ids of the module that it is for.
//! Burn shows the inside of a record only in its stored form (`burn-pack`).
//!
//! Burn 0.22.1 converts every float of a record that it loads to the default device's default type, which a process
//! chooses once (`Device::configure`), before the first tensor. An optimizer's state is private, so nothing can
//! convert it afterwards: the loaded state is read back, and compared with the saved one.

use crate::panics::quietly;
use crate::payload::AnyTensor;
use burn::module::ParamId;
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::store::burn_pack::{self, Reader, Scalar, Writer};
use burn::tensor::{Device, TensorData};
use std::collections::{BTreeMap, HashMap};

/// One entry of an optimizer's state for a parameter.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum StateValue {
    /// A tensor (such as a moment).
    Tensor(TensorData),
    /// A number (such as a step counter) or a flag.
    Scalar(Scalar),
}

/// An optimizer's state for one parameter, by field.
pub(crate) type ParameterState = BTreeMap<String, StateValue>;

/// A stage's part of a checkpoint: values by parameter, and the state of its optimizer.
#[derive(Debug, Default)]
pub(crate) struct StageState {
    /// Values, on the device of the parameter that each is for.
    pub(crate) weights: HashMap<ParamId, AnyTensor>,
    /// The optimizer's state by parameter; `None` leaves the optimizer as it is.
    pub(crate) optimizer: Option<HashMap<ParamId, ParameterState>>,
}

/// An optimizer's state, by parameter. Reads all of it to the host.
///
/// # Errors
/// Returns Burn's message if the record cannot be read.
pub(crate) fn optimizer_state(optimizer: &ModuleOptimizer) -> Result<HashMap<ParamId, ParameterState>, String> {
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
        keep(entry, StateValue::Scalar(scalar))?;
    }
    for tensor in reader.into_tensors().map_err(|e| e.to_string())? {
        let (entry, dtype, shape, _, bytes) = tensor.into_parts().map_err(|e| e.to_string())?;
        keep(&entry, StateValue::Tensor(TensorData::from_bytes(bytes, shape, dtype)))?;
    }
    Ok(states)
}

/// Replaces all of an optimizer's state, by parameter.
///
/// # Errors
/// Returns a message if the optimizer does not keep what it is given, because another kind of optimizer gave it.
pub(crate) fn with_optimizer_state(
    optimizer: ModuleOptimizer,
    states: &HashMap<ParamId, ParameterState>,
    paths: &HashMap<ParamId, String>,
) -> Result<ModuleOptimizer, String> {
    let (mut tensors, mut scalars) = (Vec::new(), Vec::new());
    let entries =
        states.iter().flat_map(|(id, state)| state.iter().map(move |(field, value)| (id.val(), field, value)));
    for (id, field, value) in entries {
        let entry = format!("{id}.{field}");
        match value {
            StateValue::Scalar(scalar) => scalars.push((entry, *scalar)),
            StateValue::Tensor(data) => {
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
    // Burn panics if a state's tensors have another rank than the parameter.
    let loaded = quietly(|| optimizer.load_record(record)).map_err(|_| refused())?;
    // Burn skips state of another kind of optimizer silently, and converts types, so it is read back and compared.
    let kept = optimizer_state(&loaded)?;
    for (id, state) in states {
        let path = || paths.get(id).cloned().unwrap_or_default();
        let kept = kept.get(id).filter(|kept| kept.keys().eq(state.keys())).ok_or_else(|| {
            let saved = state.keys().cloned().collect::<Vec<_>>().join(", ");
            format!(
                "the optimizer does not keep what was saved for `{}` ({saved}); load the checkpoint with the \
                 optimizer that saved it",
                path()
            )
        })?;
        if let Some((field, (saved, kept))) =
            state.iter().map(|(field, saved)| (field, (saved, &kept[field]))).find(|(_, (saved, kept))| !saved.is(kept))
        {
            return Err(changed(&path(), field, saved, kept));
        }
    }
    Ok(loaded)
}

/// The message for a field that Burn changed when it took it.
fn changed(path: &str, field: &str, saved: &StateValue, kept: &StateValue) -> String {
    let types = match (saved, kept) {
        (StateValue::Tensor(saved), StateValue::Tensor(kept)) => Some((saved.dtype(), kept.dtype())),
        _ => None,
    };
    match types.filter(|(saved, kept)| saved != kept) {
        Some((saved, kept)) => format!(
            "`{field}` of `{path}` was saved as {saved:?}, and Burn's optimizers take their state back as {kept:?}, \
             the default type of the default device, so that the next step would fail or differ; make {saved:?} the \
             default before anything else (`Device::configure`), or go on from the weights alone \
             (`Pipeline::load_weights`)"
        ),
        None => format!("`{field}` of `{path}` is not what was saved, once Burn's optimizer has taken it"),
    }
}

/// Why Burn did not take a state. Burn puts it on the default device first, which may not exist.
fn refused() -> String {
    match quietly(|| Device::default().sync()) {
        Ok(Ok(())) => "what was saved of the optimizer does not fit its parameters".to_owned(),
        _ => "Burn puts an optimizer's state on its default device first, and that does not answer: \
              set the variable BURN_DEVICE to one that does (wgpu, cpu, flex)"
            .to_owned(),
    }
}

impl StateValue {
    /// Returns true if the type and every bit are equal.
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (StateValue::Tensor(own), StateValue::Tensor(other)) => {
                (own.dtype(), own.shape(), own.as_bytes()) == (other.dtype(), other.shape(), other.as_bytes())
            }
            (StateValue::Scalar(Scalar::Float(own)), StateValue::Scalar(Scalar::Float(other))) => {
                own.to_bits() == other.to_bits()
            }
            (own, other) => own == other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::optim::AdamWConfig;

    #[test]
    fn state_of_another_rank_than_its_parameter_is_refused() {
        for (rank, fits) in [(1, true), (2, false), (0, false)] {
            let moment = || StateValue::Tensor(TensorData::new(vec![0f32; 3], [3]));
            let number = |number| StateValue::Scalar(Scalar::UInt(number));
            let fields = [("moment_1", moment()), ("moment_2", moment()), ("time", number(1))];
            let mut state: ParameterState =
                fields.into_iter().map(|(field, value)| (format!("momentum.{field}"), value)).collect();
            state.insert("__rank".to_owned(), number(rank));
            let states = HashMap::from([(ParamId::from(1), state)]);
            let loaded = with_optimizer_state(AdamWConfig::new().init(), &states, &HashMap::new());
            assert_eq!(loaded.is_ok(), fits, "{rank}");
        }
    }
}
