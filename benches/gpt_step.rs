//! The model, the batch and the pipelines of benchmarks of whole steps.

use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::Matmuls;
use burn_pipeline::execute::Tuning;
use burn_pipeline::schedule::{Chunks, Schedule, Size};
use burn_pipeline::stage::Batch;
use burn_pipeline::train::Pipeline;
use pipeline_examples::gpt::{GptConfig, Signal};

/// The microbatches of a batch.
pub const MICROBATCHES: usize = 8;
/// The sequences of a batch.
pub const BATCH: usize = 32;
/// The learning rate.
pub const RATE: f64 = 1e-4;

/// Options that are not the default.
#[derive(Clone, Copy, Default, Debug)]
pub struct Options {
    /// `Tuning::merge_weights`.
    pub merge: bool,
    /// `Builder::compile`.
    pub compile: bool,
    /// `Builder::matmuls`.
    pub matmuls: Matmuls,
    /// `Tuning::record_every`, if not 0.
    pub record_every: usize,
}

/// The matmuls of this name.
pub fn matmuls(name: &str) -> Result<Matmuls, String> {
    let all = [Matmuls::F32, Matmuls::Bf16, Matmuls::Bf16x3, Matmuls::Bf16x6];
    let found = all.into_iter().find(|matmuls| format!("{matmuls:?}").eq_ignore_ascii_case(name));
    found.ok_or_else(|| format!("matmuls are one of {all:?}, not `{name}`"))
}

/// Eight blocks of width 256.
pub fn config() -> GptConfig {
    GptConfig::new().with_d_model(256).with_layers(8).with_heads(4).with_seq(128)
}

/// The input and target of a batch.
pub fn tokens() -> (Tensor<2, Int>, Tensor<2, Int>) {
    let seq = config().seq;
    let draw = |salt: i64| {
        let tokens = Tensor::<1, Int>::arange(0..(BATCH * seq) as i64, &Device::flex());
        tokens.mul_scalar(7919 + salt).remainder_scalar(251).reshape([BATCH, seq])
    };
    (draw(0), draw(31))
}

/// The batch of a step.
pub fn batch((input, target): &(Tensor<2, Int>, Tensor<2, Int>)) -> Batch {
    Batch::new(Signal::Tokens(input.clone())).target(target.clone())
}

/// The size of a schedule's pipeline over `ranks` ranks.
pub fn size(schedule: &dyn Schedule, ranks: usize) -> Size {
    let chunks = match schedule.info().chunks {
        Chunks::Exactly(n) => n,
        Chunks::Any => 2,
    };
    Size { ranks, chunks, microbatches: MICROBATCHES }
}

/// The model's pipeline, or `None` if the schedule does not support this size.
pub fn pipeline(schedule: Box<dyn Schedule>, size: Size, options: Options) -> Option<Pipeline> {
    Pipeline::builder()
        .schedule(schedule, size)
        .devices(vec![Device::flex()])
        .stages(|at| config().stage(at))
        .optimizer(|| AdamWConfig::new().init())
        .tuning(Tuning { merge_weights: options.merge, record_every: options.record_every.max(1), ..Tuning::default() })
        .compile(options.compile)
        .matmuls(options.matmuls)
        .build()
        .ok()
}
