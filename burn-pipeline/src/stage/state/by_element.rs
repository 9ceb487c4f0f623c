//! Tries whether an optimizer steps each element of a parameter independently. Only then can shards be stepped.
//!
//! Guarantees: nothing in the stage changes. `false` proves that the optimizer steps a shard differently from the
//! whole; `true` is the result of a trial, not a proof.
//!
//! The optimizer steps a copy of the module whose trained parameters are a few made-up elements, and another copy
//! with only the first half of them: whole rows of a matrix, and half of a row. If it looks at one element at a time,
//! the halves are equal to the last bit after every step. Norms (of a row, too), matrix factors and clipping by norm
//! are detected; so is an optimizer that panics on the made-up shapes.
//!
//! 1. Two steps have gradients of ordinary size, different from each other.
//! 2. One step has gradients near the square root of the type's largest number. No larger norm can be computed, so
//!    every norm that an optimizer clips to is exceeded, except those even nearer to the root.
//! 3. The last step covers these: the squares of the half add up to a finite number, those of the whole to infinity.
//!
//! An element that is 0 shows the smallest update. Half precision, which has no such numbers, is tried in its own
//! type with its largest number, and once more in f32.

use super::each::each_float;
use super::in_model::step_made_up;
use super::named::{NamedParameter, named_parameters};
use super::names::Names;
use super::weights::with_weights;
use crate::payload::AnyTensor;
use burn::module::{Module, ParamId};
use burn::optim::ModuleOptimizer;
use burn::tensor::{DType, Device, TensorData};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The number of elements in a half.
const HALF: usize = 4;

/// The gradients of the steps, by the element's index and the square root of the largest number.
const STEPS: [fn(f64, f64) -> f64; 4] = [
    |i, _| 7.0 / (i + 1.0) - 3.0,
    |i, _| i * i - 5.0,
    |i, root| 0.05 * root * (i - 2.5),
    // Relative to the largest number, 4 squares sum to 0.74, and 8 to 1.48.
    |i, root| 0.43 * root * (1.0 - 2.0 * (i % 2.0)),
];

/// Tries the optimizer on copies of the module.
pub(in crate::stage) fn steps_by_element<M: Module>(
    module: &M,
    optimizer: &ModuleOptimizer,
    names: &Names,
) -> Result<bool, String> {
    let trained: Vec<NamedParameter> = named_parameters(module, names).into_iter().filter(|p| p.trainable).collect();
    let Some(device) = module.devices().first().cloned() else { return Ok(true) };
    let own_types = Trial { module, optimizer, names, trained: trained.clone(), device: device.clone() };
    if !own_types.is_by_element()? {
        return Ok(false);
    }
    let is_half = |p: &NamedParameter| !matches!(p.dtype, DType::F32 | DType::F64);
    if !trained.iter().any(is_half) {
        return Ok(true);
    }
    let trained = trained.into_iter().map(|p| NamedParameter { dtype: DType::F32, ..p }).collect();
    Trial { trained, ..own_types }.is_by_element()
}

/// A trial with made-up elements of these parameters.
struct Trial<'a, M> {
    module: &'a M,
    optimizer: &'a ModuleOptimizer,
    names: &'a Names,
    trained: Vec<NamedParameter>,
    device: Device,
}

/// The elements of each parameter.
type Elements = HashMap<ParamId, Vec<f64>>;

impl<M: Module> Trial<'_, M> {
    fn is_by_element(&self) -> Result<bool, String> {
        // A panic means that the optimizer refuses the shape, so it would refuse shards too.
        let tried = |rows, columns| {
            catch_unwind(AssertUnwindSafe(|| self.steps(rows, columns))).unwrap_or_else(|_| Ok(Vec::new()))
        };
        let (whole, in_row, half) = (tried(2, HALF)?, tried(1, 2 * HALF)?, tried(1, HALF)?);
        // Whether a value is NaN may depend on the element alone, but the bits of a NaN depend on the instruction.
        let bits = |value: &f64| if value.is_nan() { f64::NAN.to_bits() } else { value.to_bits() };
        let first = |values: &Elements, p: &NamedParameter| {
            values.get(&p.id).map(|values| values.iter().take(HALF).map(bits).collect::<Vec<_>>())
        };
        let alike = |(whole, half): (&Elements, &Elements)| {
            self.trained.iter().all(|p| first(whole, p).is_some() && first(whole, p) == first(half, p))
        };
        let complete = |steps: &Vec<Elements>| steps.len() == STEPS.len();
        let agree = |whole: &Vec<Elements>| complete(whole) && whole.iter().zip(&half).all(alike);
        Ok(complete(&half) && agree(&whole) && agree(&in_row))
    }

    /// The trained parameters after each step, if each parameter has this many rows and columns.
    fn steps(&self, rows: usize, columns: usize) -> Result<Vec<Elements>, String> {
        let values = |of: fn(f64, f64) -> f64| -> HashMap<ParamId, AnyTensor> {
            self.trained.iter().map(|p| (p.id, tensor(p, [rows, columns], &self.device, of))).collect()
        };
        let mut made = with_weights(self.module.clone(), &values(|i, _| 0.1 * i));
        let mut optimizer = self.optimizer.clone();
        let step = |of| {
            made = step_made_up(&mut optimizer, 0.01, made.clone(), values(of), self.names);
            self.elements(&made)
        };
        STEPS.into_iter().map(step).collect()
    }

    /// The elements of the made-up parameters.
    fn elements(&self, made: &M) -> Result<Elements, String> {
        let mut read = Ok(Elements::new());
        each_float(made, |_, param| {
            let Ok(elements) = &mut read else { return };
            if self.trained.iter().any(|trained| trained.id == param.id()) {
                match param.base().inner().into_data() {
                    Ok(data) => drop(elements.insert(param.id(), data.iter::<f64>().collect())),
                    Err(failed) => read = Err(failed),
                }
            }
        });
        read
    }
}

/// A few elements in a tensor of the parameter's rank: in these rows and columns, or in sequence for rank 1.
fn tensor(p: &NamedParameter, [rows, columns]: [usize; 2], device: &Device, of: fn(f64, f64) -> f64) -> AnyTensor {
    let mut shape = vec![1; p.shape.len().max(1)];
    match shape.len() {
        1 => shape[0] = rows * columns,
        rank => (shape[rank - 2], shape[rank - 1]) = (rows, columns),
    }
    let largest = p.dtype.finfo().map_or(f64::MAX, |info| info.max);
    let root = if p.dtype == DType::F64 { f64::MAX.sqrt() } else { f64::from(f32::MAX).sqrt() };
    let values: Vec<f64> = (0..rows * columns).map(|i| of(i as f64, root).clamp(-largest, largest)).collect();
    AnyTensor::from_data(TensorData::new(values, shape).convert_dtype(p.dtype), device)
}
