//! Does an optimizer step each element of a parameter by itself? Only then can shards of parameters be stepped.
//!
//! Guarantees: nothing of the stage changes. `false` proves that the optimizer steps a shard differently from the whole;
//! `true` is the result of a trial, not a proof.
//!
//! The optimizer steps a copy of the module whose trained parameters are a few made-up elements, and one with the first
//! half of them; two steps each, with different gradients. If it looks at one element at a time, the halves end equal to
//! the last bit. Norms, matrix factors and clipping by norm are detected; so is an optimizer that panics on the made-up
//! shapes.

use super::gradients::collected;
use super::gradients::{Accumulation, GradientStore};
use super::in_model::step_in_model;
use super::named::{NamedParameter, named_parameters};
use super::names::Names;
use super::weights::with_weights;
use crate::stage::boundary::AnyTensor;
use burn::module::{Module, ParamId};
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, TensorData};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Elements of a half.
const HALF: usize = 4;

/// Tries the optimizer on copies of the module.
pub(in crate::stage) fn steps_by_element<M: Module>(
    module: &M,
    optimizer: &ModuleOptimizer,
    names: &Names,
) -> Result<bool, String> {
    let trained: Vec<NamedParameter> = named_parameters(module, names).into_iter().filter(|p| p.trainable).collect();
    let Some(device) = module.devices().first().cloned() else { return Ok(true) };
    let trial = |halves| {
        let trial = || trial(module, optimizer, names, &trained, &device, halves);
        // A panic means that the optimizer refuses the shape, so it would refuse shards too.
        catch_unwind(AssertUnwindSafe(trial)).unwrap_or_else(|_| Ok(HashMap::new()))
    };
    let (whole, half) = (trial(2)?, trial(1)?);
    Ok(trained.iter().all(|p| {
        let first = |values: &HashMap<ParamId, Vec<f64>>| {
            values.get(&p.id).map(|values| values.iter().take(HALF).map(|value| value.to_bits()).collect::<Vec<_>>())
        };
        first(&whole).is_some() && first(&whole) == first(&half)
    }))
}

/// The trained parameters after two steps, where each has this many halves.
fn trial<M: Module>(
    module: &M,
    optimizer: &ModuleOptimizer,
    names: &Names,
    trained: &[NamedParameter],
    device: &Device,
    halves: usize,
) -> Result<HashMap<ParamId, Vec<f64>>, String> {
    let mut made = module.clone();
    let values = |of: fn(usize) -> f32| -> HashMap<ParamId, AnyTensor> {
        let value = |p: &NamedParameter| (p.id, tensor(p, halves, device, of));
        trained.iter().map(value).collect()
    };
    made = with_weights(made, &values(|i| 0.1 * (i + 1) as f32));
    let mut optimizer = optimizer.clone();
    // Large gradients, so that clipping by norm applies, and with another factor to a half than to the whole.
    let steps: [fn(usize) -> f32; 2] = [|i| 7.0 / (i + 1) as f32 - 3.0, |i| (i * i) as f32 - 5.0];
    for of in steps {
        let mut store = GradientStore::new(Accumulation::AsTheyCome);
        values(of).into_iter().for_each(|(id, gradient)| store.set(id, gradient));
        let gradients = collected(&made, &mut store);
        made = step_in_model(&mut optimizer, 0.01.into(), made, gradients, names);
    }
    let mut after = HashMap::new();
    let mut read = Read { after: &mut after, failed: None };
    made.visit(&mut read);
    match read.failed {
        Some(failed) => Err(failed),
        None => Ok(after),
    }
}

/// A few elements in a tensor of the parameter's rank: one row for each half, or the halves in sequence for rank 1.
fn tensor(p: &NamedParameter, halves: usize, device: &Device, of: fn(usize) -> f32) -> AnyTensor {
    let mut shape = vec![1; p.shape.len().max(1)];
    match shape.len() {
        1 => shape[0] = HALF * halves,
        rank => (shape[rank - 2], shape[rank - 1]) = (halves, HALF),
    }
    let data = TensorData::new((0..HALF * halves).map(of).collect::<Vec<f32>>(), shape).convert_dtype(p.dtype);
    AnyTensor::from_data_exact(data, device)
}

struct Read<'a> {
    after: &'a mut HashMap<ParamId, Vec<f64>>,
    failed: Option<String>,
}

impl burn::module::ModuleVisitor for Read<'_> {
    fn visit_float<const D: usize>(&mut self, param: &burn::module::Param<burn::tensor::Tensor<D>>) {
        match AnyTensor::new(param.val().inner()).into_data() {
            Ok(data) => drop(self.after.insert(param.id, data.iter::<f64>().collect())),
            Err(failed) => self.failed = Some(failed),
        }
    }
}
