//! A step's peak device memory matches the simulator's prediction from stages that were measured one by one.
//!
//! 1. A CubeCL device reports the memory in use but no peak, so [`Meter`] polls it. It answers between operations
//!    and may miss a peak that lasts for a few of them.
//! 2. There is one rank, since the memory in use is counted per device, not per rank. It holds all microbatches at
//!    once under GPipe, and one under 1F1B.

use crate::{devices, is_fast, turn};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::schedule::Size;
use burn_pipeline::simulate::{SimulateOptions, simulate};
use burn_pipeline::stage::{Batch, SplitBackward};
use burn_pipeline::train::{MemoryMeter, Pipeline};
use pipeline_examples::gpt::{GptConfig, Signal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const MICROBATCHES: usize = 4;
const SEQ: usize = 64;

/// Polls the bytes in use on a device, and keeps their maximum.
struct Meter {
    device: Device,
    most: Arc<AtomicUsize>,
    ends: Arc<AtomicBool>,
    asks: Option<JoinHandle<()>>,
}

impl Meter {
    fn new(device: &Device) -> Self {
        let (most, ends) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (device, own) = (device.clone(), (device.clone(), most.clone(), ends.clone()));
        let asks = thread::spawn(move || {
            let (device, most, ends) = own;
            while !ends.load(Ordering::Relaxed) {
                most.fetch_max(in_use(&device), Ordering::Relaxed);
                thread::sleep(Duration::from_micros(100));
            }
        });
        Self { device, most, ends, asks: Some(asks) }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(asks) = self.asks.take() {
            drop(asks.join());
        }
    }
}

impl MemoryMeter for Meter {
    fn allocated(&self) -> usize {
        self.device.sync().unwrap();
        let now = in_use(&self.device);
        self.most.fetch_max(now, Ordering::Relaxed);
        now
    }

    fn take_peak(&self) -> usize {
        let now = self.allocated();
        self.most.swap(now, Ordering::Relaxed)
    }
}

fn in_use(device: &Device) -> usize {
    device.memory_pool_usage().unwrap().bytes_in_use as usize
}

fn batch(device: &Device, microbatches: usize) -> Batch {
    let samples = 4 * microbatches;
    let tokens = Tensor::<1, Int>::arange(0..(samples * SEQ) as i64, device);
    let tokens = tokens.remainder_scalar(251).reshape([samples, SEQ]);
    Batch::new(Signal::Tokens(tokens.clone())).target(tokens)
}

/// The peak bytes of a step: predicted, then measured.
fn peaks(device: &Device, schedule: &str, split: SplitBackward) -> (f64, f64) {
    let config = GptConfig::new().with_d_model(64).with_layers(2).with_heads(4).with_seq(SEQ);
    let builder = Pipeline::builder()
        .schedule(schedule, Size::new(1, MICROBATCHES))
        .devices(vec![device.clone()])
        .stages(move |at| config.stage(at))
        .optimizer(|| SgdConfig::new().init())
        .split(split);
    let meter = Meter::new(device);
    let profile = builder.measure_memory(batch(device, 1), &meter).unwrap();
    let others = meter.allocated();
    let mut pipeline = builder.build().unwrap();
    let mut step = || drop(pipeline.step(batch(device, MICROBATCHES), 1e-4).unwrap());
    step();
    meter.take_peak();
    step();
    let measured = (meter.take_peak() - others) as f64;
    let plan = pipeline.plan(MICROBATCHES).unwrap();
    let simulated = simulate(plan.plan(), &profile, &SimulateOptions::default()).unwrap();
    (simulated.ranks[0].peak_bytes, measured)
}

#[test]
fn the_most_device_memory_of_a_step_is_predicted() {
    let _turn = turn();
    for device in devices().into_iter().filter(is_fast) {
        for split in [SplitBackward::Eager, SplitBackward::Captured] {
            for schedule in ["GPipe", "1F1B"] {
                let (predicted, measured) = peaks(&device, schedule, split);
                let ratio = predicted / measured;
                let place =
                    format!("{schedule}, {split:?}: {predicted:.0} bytes predicted, {measured:.0} in use: {ratio:.3}");
                println!("{place}");
                assert!((0.8..=1.25).contains(&ratio), "{place}");
            }
        }
    }
}
