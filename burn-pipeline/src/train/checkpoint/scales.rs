//! The scales of a stage's low-rank adapters, which Burn's visitors do not show.
//!
//! Guarantees: the stage's values are the same afterwards, to the last bit, also if its module panics.
//!
//! A weight of one element that is 0, with factors of one element that are 1, is its adapter's scale once the adapter
//! is added to it. So the stage gets such values for a moment.

use super::error::CheckpointError;
use crate::payload::AnyTensor;
use crate::stage::{ErasedStage, NamedWeight};
use burn::module::ParamId;
use burn::tensor::TensorData;
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The scale of each adapter of a stage, by the path of the weight that it adapts.
pub(super) fn scales(held: &mut dyn ErasedStage) -> Result<BTreeMap<String, f64>, CheckpointError> {
    let ids: HashMap<String, ParamId> = held.named_weights().into_iter().map(|w| (w.path, w.id)).collect();
    let mut ones_and_zeros: HashMap<ParamId, f32> = HashMap::new();
    let mut adapted = Vec::new();
    for (path, base) in &ids {
        let factor = |name: &str| ids.get(&format!("{path}.lora.{name}")).copied();
        let (Some(a), Some(b)) = (factor("a"), factor("b")) else { continue };
        ones_and_zeros.extend([(*base, 0.0), (a, 1.0), (b, 1.0)]);
        adapted.push(path.clone());
    }
    if adapted.is_empty() {
        return Ok(BTreeMap::new());
    }
    let kept = held.weights();
    let small = |(id, value): &(ParamId, AnyTensor)| match ones_and_zeros.get(id) {
        Some(&number) => AnyTensor::from_data(TensorData::new(vec![number], [1, 1]), &value.device()),
        None => value.clone(),
    };
    held.set_weights(kept.iter().map(small).collect());
    let merged = catch_unwind(AssertUnwindSafe(|| held.merged_weights()));
    held.set_weights(kept.into_iter().map(|(_, value)| value).collect());
    let merged = merged.unwrap_or_else(|panic| resume_unwind(panic)).into_iter();
    let scale = |weight: NamedWeight| {
        let failed = |message| CheckpointError::Device { name: weight.names[0].clone(), message };
        let scale = weight.value.to_data().map_err(failed)?.iter::<f64>().next();
        Ok((weight.path, scale.unwrap_or_default()))
    };
    merged.filter(|weight| adapted.contains(&weight.path)).map(scale).collect()
}
