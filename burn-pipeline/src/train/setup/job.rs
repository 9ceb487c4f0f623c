//! What all ranks of a job must have in common. Ranks in processes compare it before they build their stages.

use super::builder::Builder;
use crate::link::kit::WIRE_VERSION;
use crate::plan::Plan;
use crate::train::control::Job;
use crate::train::plans::fingerprint;
use burn::tensor::Device;

/// Names and values. Every option of the builder is named here, so that a new one does not compile before somebody has
/// decided whether ranks must have it alike.
pub(super) fn job(builder: &Builder, plan: &Plan, device: &Device) -> Job {
    let Builder {
        // The plan comes of these, and is compared itself.
        source: _,
        planned: _,
        // Functions. What comes of them is compared: the parameters of each stage, and what the optimizer does.
        factory: _,
        optimizers: _,
        // Each process holds its own against the names of the whole model.
        groups: _,
        // Each process's own.
        devices: _,
        threads: _,
        timeout: _,
        synchronize: _,
        outputs: _,
        delay: _,
        reduction,
        clip_norm,
        on_non_finite,
        accumulation,
        split,
        captured_programs,
        compile,
        bf16_products,
        keep_outputs,
        compare_batches,
        shared,
        skips,
        cut,
        recomputing,
        validate,
        seed,
        merge_weights,
        fused,
        model,
        // Compared as what they give together.
        replicas: _,
        members: _,
        sharded: _,
        gathered: _,
        vocabulary,
    } = builder;
    let settings = device.clone().inner().settings();
    let vocabulary = vocabulary.as_ref().map(|vocabulary| format!("{:?}", vocabulary.layers()));
    let rows = [
        ("the version of burn-pipeline", format!("{} (messages {WIRE_VERSION})", env!("CARGO_PKG_VERSION"))),
        ("the number of microbatches", plan.total_microbatches().to_string()),
        ("the plan", fingerprint(plan)),
        ("the loss contract", format!("{reduction:?}, {accumulation:?} accumulation, clip norm {clip_norm:?}")),
        ("what losses that are no numbers lead to", format!("{on_non_finite:?}")),
        ("the data-parallel replicas", format!("{:?}", builder.replication())),
        ("the vocabulary (`Builder::vocabulary`)", vocabulary.unwrap_or_else(|| "none that is spread".to_owned())),
        ("the shared parameters (`Builder::share`)", format!("{shared:?}")),
        ("the skip edges (`Builder::skip`)", format!("{skips:?}")),
        ("the cut of the layers (`Builder::cut`)", format!("{cut:?}")),
        ("how split backwards run (`Builder::split`)", format!("{split:?}")),
        ("the merged `W`s (`Builder::merge_weights`)", format!("{merge_weights}")),
        ("how fused actions run (`Builder::fused`)", format!("{fused:?}")),
        ("whether stages are compiled (`Builder::compile`)", format!("{compile}")),
        ("how many programs a stage keeps (`Builder::captured_programs`)", format!("{captured_programs}")),
        ("whether outputs are held (`Builder::keep_outputs`)", format!("{keep_outputs}")),
        ("the stages that recompute", format!("{recomputing:?}")),
        ("which specs are compared (`Builder::validate`)", format!("{validate:?}")),
        ("whether batches are compared (`Builder::compare_batches`)", format!("{compare_batches}")),
        ("the operands of products", if *bf16_products { "bf16" } else { "not rounded" }.to_owned()),
        ("the seed", format!("{seed:?}")),
        ("the default data types", format!("{:?} and {:?}", settings.float_dtype, settings.int_dtype)),
        ("the model", model.clone().unwrap_or_else(|| "no description".to_owned())),
    ];
    rows.map(|(name, value)| (name.to_owned(), value)).into()
}
