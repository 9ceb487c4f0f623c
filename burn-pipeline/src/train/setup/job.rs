//! The settings that all ranks of a job must share. Ranks in processes compare them before they build their stages.

use super::builder::Builder;
use crate::execute::Tuning;
use crate::link::kit::WIRE_VERSION;
use crate::program::{Bf16, Matmuls};
use crate::train::control::Job;
use crate::train::plans::fingerprint;
use crate::train::step::Settings;
use burn::tensor::Device;
use burn_pipeline_plan::plan::Plan;

/// Names and values. Every option of the builder is listed here, so a new one does not compile until somebody decides
/// whether ranks must share it.
pub(super) fn job(builder: &Builder, plan: &Plan, device: &Device) -> Job {
    let Builder {
        // The plan is derived from these, and is compared itself.
        source: _,
        planned: _,
        // Functions. Their results are compared: the parameters of each stage, and the optimizer's steps.
        factory: _,
        optimizers: _,
        // Each process checks its own against the names of the whole model.
        groups: _,
        // May differ between processes.
        devices: _,
        threads: _,
        timeout: _,
        delay: _,
        // Outputs are sent to the processes that ask for them.
        settings: Settings { reduction, clip_norm, on_non_finite, validate, outputs: _ },
        accumulation,
        split,
        compile,
        matmuls,
        precision,
        layers,
        compare_batches,
        input_gradients,
        shared,
        skips,
        cut,
        recomputing,
        seed,
        tuning,
        model,
        // Compared by their combined effect.
        replicas: _,
        members: _,
        sharded: _,
        gathered: _,
        vocabulary,
    } = builder;
    let types = device.clone().inner().settings();
    let vocabulary = vocabulary.as_ref().map(|vocabulary| format!("{:?}", vocabulary.layers()));
    let rows = [
        ("the version of burn-pipeline", format!("{} (messages {WIRE_VERSION})", env!("CARGO_PKG_VERSION"))),
        ("the number of microbatches", plan.total_microbatches().to_string()),
        ("the plan", fingerprint(plan)),
        ("the loss contract", format!("{reduction:?}, {accumulation:?} accumulation, clip norm {clip_norm:?}")),
        ("the policy for non-finite losses", format!("{on_non_finite:?}")),
        ("the data-parallel replicas", format!("{:?}", builder.replication())),
        ("the vocabulary (`Builder::vocabulary`)", vocabulary.unwrap_or_else(|| "not parallel".to_owned())),
        ("the shared parameters (`Builder::share`)", format!("{shared:?}")),
        ("the skip edges (`Builder::skip`)", format!("{skips:?}")),
        ("the cut of the layers (`Builder::cut`)", format!("{cut:?}")),
        ("how split backwards run (`Builder::split`)", format!("{split:?}")),
        ("how stages run (`Builder::tuning`)", format!("{:?}", Tuning { synchronize: false, ..*tuning })),
        ("whether stages are compiled (`Builder::compile`)", format!("{compile}")),
        ("the stages that recompute", format!("{recomputing:?}")),
        ("which specs are compared (`Builder::validate`)", format!("{validate:?}")),
        ("whether batches are compared (`Builder::compare_batches`)", format!("{compare_batches}")),
        ("whether gradients of batches are computed (`Builder::input_gradients`)", format!("{input_gradients}")),
        ("how matmuls multiply (`Builder::matmuls`)", multiplication(*matmuls)),
        ("the precision (`Builder::precision`)", format!("{precision:?}")),
        ("the seed", format!("{seed:?}")),
        ("the default data types", format!("{:?} and {:?}", types.float_dtype, types.int_dtype)),
        ("the layers (`Builder::layers`)", layers.as_ref().map_or("none".to_owned(), |model| model.text().to_owned())),
        ("the model", model.clone().unwrap_or_else(|| "no description".to_owned())),
    ];
    rows.map(|(name, value)| (name.to_owned(), value)).into()
}

/// How this process multiplies. Sums on matrix tiles and in pairs have other bits, so that a job must not mix them.
fn multiplication(matmuls: Matmuls) -> String {
    let sums = |found: Bf16| if found.is_on_tiles() { "on matrix tiles" } else { "in pairs" };
    matmuls.detect().map_or(format!("{matmuls:?}"), |found| format!("{matmuls:?}, summed {}", sums(found)))
}
