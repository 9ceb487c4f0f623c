//! Checkpoints whose element types are not those of the model.
//!
//! Guarantees: with equal types, every bit is what was saved. A parameter in half precision becomes f32 with the same
//! value, and so does its optimizer state; one in f32 is rounded to half precision once, to nearest even. Optimizer
//! state is never rounded, and other pairs of float types are refused. Integers and booleans have the device's type.

use super::manifest::dtype_name;
use crate::payload::{AnyTensor, TensorKind};
use crate::stage::{ParameterState, StateValue};
use burn::tensor::{DType, TensorData};

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
///
/// # Errors
/// Returns a message if the state would be rounded, or a value would become infinite.
pub(super) fn as_type_of(
    own: &AnyTensor,
    name: &str,
    saved: TensorData,
    state: &mut ParameterState,
) -> Result<TensorData, String> {
    let is_same = dtype_name(saved.dtype()) == dtype_name(own.dtype());
    if is_same || own.kind() != TensorKind::Float {
        return Ok(saved);
    }
    widen(name, state, own.dtype())?;
    let converted = saved.clone().convert_dtype(own.dtype());
    let overflows = |(saved, converted): (f32, f32)| saved.is_finite() && !converted.is_finite();
    if own.dtype() == DType::F16 && saved.iter().zip(converted.iter()).any(overflows) {
        return Err(format!(
            "a value of `{name}` is above what f16 holds; use bf16, or masters (`Builder::precision`)"
        ));
    }
    Ok(converted)
}

/// Widens the optimizer state of a parameter that was saved with another type.
///
/// # Errors
/// Returns a message if it would be rounded: the next steps would not follow from what was saved.
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
