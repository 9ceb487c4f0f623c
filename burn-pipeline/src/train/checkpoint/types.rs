//! Checkpoints and stores whose element types are not those of the model.
//!
//! Guarantees: with equal types, every bit is what was saved. A value that the model's type cannot hold is refused by
//! its parameter's name. Of checkpoints, a parameter in half precision becomes f32 with the same value, and so does its
//! optimizer state; one in f32 is rounded to half precision once, to nearest even. Optimizer state is never rounded,
//! and other pairs of float types are refused. Integers get the model's type, booleans the device's.

use super::error::CheckpointError;
use super::manifest::dtype_name;
use crate::payload::{AnyTensor, TensorKind};
use crate::stage::{ErasedStage, ParameterState, StageState, StateValue};
use burn::module::ParamId;
use burn::tensor::{DType, TensorData};
use std::collections::HashSet;

/// The parameters of a stage that are trained.
pub(super) fn trained(held: &dyn ErasedStage) -> HashSet<ParamId> {
    held.named_parameters().into_iter().filter(|parameter| parameter.trainable).map(|parameter| parameter.id).collect()
}

/// Returns true if a parameter that was saved with the element type of this name can be loaded as `own`.
pub(super) fn fits(saved: &str, own: &AnyTensor) -> bool {
    let name = dtype_name(own.dtype());
    match (saved, &*name) {
        ("bf16" | "f16", "f32") | ("f32", "bf16" | "f16") => true,
        (saved, name) if own.kind() == TensorKind::Float => saved == name,
        (saved, _) => kind_of(saved) == own.kind(),
    }
}

/// A saved parameter in the type of `own`, with its optimizer state.
pub(super) fn as_type_of(
    own: &AnyTensor,
    name: &str,
    saved: TensorData,
    state: &mut ParameterState,
) -> Result<TensorData, CheckpointError> {
    if dtype_name(saved.dtype()) == dtype_name(own.dtype()) {
        return Ok(saved);
    }
    if own.kind() == TensorKind::Float {
        widen(name, state, own.dtype()).map_err(CheckpointError::OptimizerState)?;
    }
    converted(name, saved, own.dtype())
}

/// A tensor in another element type of its kind. Refuses values that would become infinite, or panic.
pub(super) fn converted(name: &str, data: TensorData, to: DType) -> Result<TensorData, CheckpointError> {
    let refused = || CheckpointError::Range { name: name.to_owned(), dtype: dtype_name(to) };
    if let Some(holds) = integers(to)
        && !data.dtype().is_bool()
        && whole_numbers(&data).any(|value| !holds.contains(&value))
    {
        return Err(refused());
    }
    if exceeds(&data, to) { Err(refused()) } else { Ok(data.convert_dtype(to)) }
}

/// Returns true if a finite number would become infinite in a float type.
fn exceeds(data: &TensorData, to: DType) -> bool {
    let Some(limit) = limit(to).filter(|limit| data.dtype().is_float() && !own_limit_below(data.dtype(), *limit))
    else {
        return false;
    };
    let rounds_up = |value: f64| value.is_finite() && value.abs() >= limit;
    // Most are f32, which is read without an iterator behind a pointer.
    match data.as_slice::<f32>() {
        Ok(values) => values.iter().any(|&value| rounds_up(f64::from(value))),
        Err(_) => data.iter::<f64>().any(rounds_up),
    }
}

/// Returns true if all finite numbers of a float type are below this one.
fn own_limit_below(dtype: DType, other: f64) -> bool {
    limit(dtype).is_some_and(|own| own <= other)
}

/// Refuses values of masters whose rounded copies, with which a stage computes, would be infinite.
pub(super) fn refuse_infinite_copies(held: &dyn ErasedStage, state: &StageState) -> Result<(), CheckpointError> {
    if held.options().precision.is_none() {
        return Ok(());
    }
    // A frozen mask may well be infinite.
    let (trained, copies) = (trained(held), held.computed().into_iter());
    let copies = copies.filter(|(id, copy)| copy.dtype() == DType::F16 && trained.contains(id));
    let masters = copies.filter_map(|(id, _)| Some((id, state.weights.get(&id)?)));
    for (id, master) in masters.filter(|(_, master)| master.dtype() != DType::F16) {
        let name = || {
            let mut weights = held.named_weights().into_iter();
            weights.find(|weight| weight.id == id).map(|mut weight| weight.names.swap_remove(0)).unwrap_or_default()
        };
        let data = master.to_data().map_err(|message| CheckpointError::Device { name: name(), message })?;
        if exceeds(&data, DType::F16) {
            return Err(CheckpointError::Range { name: name(), dtype: dtype_name(DType::F16) });
        }
    }
    Ok(())
}

/// The least number that rounds to infinity in a float type: halfway between its largest number and the next power of
/// two. `None` for types that hold whatever is stored.
fn limit(dtype: DType) -> Option<f64> {
    match dtype {
        DType::F16 => Some(65520.0),
        // 2^128 - 2^119 and 2^128 - 2^103.
        DType::BF16 => Some(f64::from(f32::MAX) + 2f64.powi(104) - 2f64.powi(119)),
        DType::F32 | DType::Flex32 => Some(f64::from(f32::MAX) + 2f64.powi(103)),
        _ => None,
    }
}

/// The numbers that an integer type holds; `None` for other types.
fn integers(dtype: DType) -> Option<std::ops::RangeInclusive<i128>> {
    let bits = 8 * dtype.size() as u32;
    match (dtype.is_int(), dtype.is_uint()) {
        (true, _) => Some(-(1 << (bits - 1))..=(1 << (bits - 1)) - 1),
        (_, true) => Some(0..=(1 << bits) - 1),
        _ => None,
    }
}

fn whole_numbers(data: &TensorData) -> Box<dyn Iterator<Item = i128> + '_> {
    match data.dtype() {
        DType::U64 => Box::new(data.iter::<u64>().map(i128::from)),
        _ => Box::new(data.iter::<i64>().map(i128::from)),
    }
}

/// Widens the optimizer state of a parameter that was saved with another type. Refuses to round it: the next steps
/// would not follow from what was saved.
fn widen(name: &str, state: &mut ParameterState, own: DType) -> Result<(), String> {
    for (field, value) in state {
        let StateValue::Tensor(data) = value else { continue };
        match data.dtype() {
            DType::BF16 | DType::F16 if own == DType::F32 => *data = data.clone().convert_dtype(own),
            saved if saved.is_float() && saved != own => {
                return Err(format!(
                    "`{field}` of `{name}` was saved as {saved:?}, and an optimizer's state is not rounded to {own:?}, \
                     which its parameter is here; go on from the weights alone (`Pipeline::load_weights`), or with \
                     masters (`Builder::precision`)"
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The kind of tensor that has an element type of this name.
fn kind_of(dtype: &str) -> TensorKind {
    match dtype.as_bytes().first() {
        Some(b'f') => TensorKind::Float,
        Some(b'b') if dtype == "bool" => TensorKind::Bool,
        Some(b'b') => TensorKind::Float,
        _ => TensorKind::Int,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits<E: burn::tensor::Element>(value: E, to: DType) -> bool {
        let converted = converted("x", TensorData::new(vec![value], [1]), to);
        if let Ok(data) = &converted {
            assert_eq!(data.dtype(), to);
        }
        converted.map_err(|error| assert!(error.to_string().contains("`x`"), "{error}")).is_ok()
    }

    #[test]
    fn what_a_type_cannot_hold_is_refused() {
        assert!(fits(65504.0f32, DType::F16) && fits(f32::NEG_INFINITY, DType::F16) && fits(f32::NAN, DType::F16));
        assert!(!fits(65536.0f32, DType::F16) && !fits(-1e30f64, DType::F16));
        assert!(fits(1e30f64, DType::F32) && fits(1e30f32, DType::BF16) && fits(1e30f64, DType::F64));
        assert!(!fits(1e39f64, DType::F32) && !fits(f32::MAX, DType::BF16));
        assert!(fits(i64::from(i32::MAX), DType::I32) && !fits(i64::from(i32::MAX) + 1, DType::I32));
        assert!(fits(255i64, DType::U8) && !fits(256i64, DType::U8) && !fits(-1i32, DType::U64));
        assert!(fits(u64::MAX, DType::U64) && !fits(u64::MAX, DType::I64));
    }
}
