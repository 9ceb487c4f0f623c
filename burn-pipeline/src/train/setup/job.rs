//! What all ranks of a job must have in common. Ranks in processes compare it before they build their stages.

use super::builder::Builder;
use crate::link::kit::WIRE_VERSION;
use crate::plan::Plan;
use crate::train::control::Job;
use crate::train::plans::fingerprint;
use burn::tensor::Device;

/// Names and values.
pub(super) fn job(builder: &Builder, plan: &Plan, device: &Device) -> Job {
    let settings = device.clone().inner().settings();
    let (reduction, accumulation, clip) = (builder.reduction, builder.accumulation, builder.clip_norm);
    let on_non_finite = builder.on_non_finite;
    let rows = [
        ("the version of burn-pipeline", format!("{} (messages {WIRE_VERSION})", env!("CARGO_PKG_VERSION"))),
        ("the number of microbatches", plan.total_microbatches().to_string()),
        ("the plan", fingerprint(plan)),
        ("the loss contract", format!("{reduction:?}, {accumulation:?} accumulation, clip norm {clip:?}")),
        ("what losses that are no numbers lead to", format!("{on_non_finite:?}")),
        ("the data-parallel replicas", format!("{:?}", builder.replication())),
        ("the operands of products", if builder.bf16_products { "bf16" } else { "not rounded" }.to_owned()),
        ("the seed", format!("{:?}", builder.seed)),
        ("the default data types", format!("{:?} and {:?}", settings.float_dtype, settings.int_dtype)),
        ("the model", builder.model.clone().unwrap_or_else(|| "no description".to_owned())),
    ];
    rows.map(|(name, value)| (name.to_owned(), value)).into()
}
