//! The loop that pipelines are compared with: the whole model on one device, microbatch by microbatch, with Burn's
//! own autodiff, in a compute pool of a given number of threads.

use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::stage::Stage;
use burn_pipeline::train::StageContext;
use pipeline_examples::gpt::{GptConfig, GptPart, Signal, next_token_loss};
use std::time::Instant;

/// The whole model on one device.
#[allow(missing_debug_implementations, reason = "Burn's optimizer has none")]
pub struct PlainLoop {
    model: Option<GptPart>,
    optimizer: ModuleOptimizer,
    pool: rayon::ThreadPool,
    microbatches: usize,
}

impl PlainLoop {
    /// A model on Flex that runs `microbatches` pieces of each batch on `threads` threads.
    ///
    /// # Panics
    /// If the threads cannot be started.
    pub fn new(config: GptConfig, threads: usize, microbatches: usize) -> Self {
        Self::on(Device::flex(), config, threads, microbatches)
    }

    /// The same on another device.
    ///
    /// # Panics
    /// If the threads cannot be started.
    pub fn on(device: Device, config: GptConfig, threads: usize, microbatches: usize) -> Self {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = pool.unwrap_or_else(|error| panic!("no compute threads: {error}"));
        let whole = StageContext {
            index: 0,
            stages: 1,
            rank: 0,
            device: device.autodiff(),
            cut: None,
            group: Default::default(),
            replicas: Default::default(),
        };
        let model = Some(config.part(&whole));
        Self { model, optimizer: AdamWConfig::new().init(), pool, microbatches }
    }

    /// Runs one step; returns its seconds, including reading the loss at the end.
    pub fn step(&mut self, input: &Tensor<2, Int>, target: &Tensor<2, Int>, learning_rate: f64) -> f64 {
        let Self { model, optimizer, pool, microbatches } = self;
        let Some(held) = model.take() else { return f64::NAN };
        let (count, samples) = (*microbatches, input.dims()[0]);
        let began = Instant::now();
        *model = Some(pool.install(|| {
            let mut sum = GradientsAccumulator::new();
            let mut losses = Vec::with_capacity(count);
            for piece in 0..count {
                let range = piece * samples / count..(piece + 1) * samples / count;
                let tokens = Signal::Tokens(input.clone().slice([range.clone()]).autodiff());
                let loss = next_token_loss(held.forward(tokens, ()), target.clone().slice([range]).autodiff());
                let loss = loss.div_scalar(count as f64);
                losses.push(loss.clone().inner());
                sum.accumulate(&held, GradientsParams::from_grads(loss.backward(), &held));
            }
            let _: f32 = losses.into_iter().map(|loss| loss.into_scalar::<f32>()).sum();
            optimizer.step(learning_rate, held, sum.grads())
        }));
        began.elapsed().as_secs_f64()
    }
}
