//! Ranks hold as much as their plans say: the held microbatches of every schedule, and the heap of two schedules.

use crate::heap::{peak_of, settle, turn};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::plan::{Op, Plan};
use burn_pipeline::schedule::{Chunks, Schedule, Size, all};
use burn_pipeline::stage::{Batch, Stage, StageBox};
use burn_pipeline::train::Pipeline;
use pipeline_tests::mlp;
use std::collections::HashSet;

/// The most microbatches that each rank holds according to its row, from a forward to the backward that frees it.
fn predicted(plan: &Plan) -> Vec<usize> {
    let peak = |row| {
        let (mut held, mut peak) = (HashSet::new(), 0);
        for task in plan.tasks(row) {
            let key = (task.stage(), task.microbatch());
            match task.op() {
                Op::Forward => assert!(held.insert(key)),
                Op::Backward | Op::BackwardWeight => assert!(held.remove(&key)),
                _ => {}
            }
            peak = peak.max(held.len());
        }
        assert!(held.is_empty());
        peak
    };
    (0..plan.ranks()).map(peak).collect()
}

fn batch(samples: usize) -> Batch {
    let device = Device::flex();
    let x = Tensor::<2>::ones([samples, mlp::WIDTH], &device);
    Batch::new((x.clone(), Tensor::<2, Int>::zeros([samples, 1], &device))).target(x)
}

fn chunks(schedule: &dyn Schedule) -> usize {
    match schedule.info().chunks {
        Chunks::Exactly(chunks) => chunks,
        Chunks::Any => 2,
    }
}

#[test]
fn every_schedule_holds_as_many_microbatches_as_its_plan_says() {
    let _turn = turn();
    let mut proved = HashSet::new();
    for schedule in all().into_iter().filter(|schedule| schedule.info().name != "ForwardOnly") {
        for ranks in 1..=4 {
            for microbatches in [1, 2, 5, 8, 12] {
                let size = Size::new(ranks, microbatches).with_chunks(chunks(schedule.as_ref()));
                let Ok(plan) = schedule.build(size) else { continue };
                let name = schedule.info().name;
                let builder = Pipeline::builder().schedule(name, size).stages(mlp::stage);
                let mut pipeline = builder.devices(vec![Device::flex()]).build().unwrap();
                let report = pipeline.accumulate(batch(microbatches)).unwrap();
                assert_eq!(report.peak_held, predicted(&plan), "{name} at {size:?}");
                proved.insert(name);
            }
        }
    }
    assert_eq!(proved.len(), all().len() - 1, "some schedule was built at no size: {proved:?}");
}

pub(crate) const WIDTH: usize = 256;
pub(crate) const ROWS: usize = 128;
pub(crate) const MICROBATCHES: usize = 16;

/// Layers whose activations are far larger than their weights.
#[derive(Module, Debug)]
pub(crate) struct Wide {
    layers: Vec<Linear>,
}

impl Stage for Wide {
    type Input = Tensor<3>;
    type Extra = ();
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, (): ()) -> Tensor<3> {
        self.layers.iter().fold(x, |x, layer| layer.forward(x).tanh())
    }
}

pub(crate) fn wide(device: &Device) -> Wide {
    Wide { layers: (0..3).map(|_| LinearConfig::new(WIDTH, WIDTH).init(device)).collect() }
}

pub(crate) fn batch_of(samples: usize) -> Batch {
    let x = Tensor::<3>::ones([samples, ROWS, WIDTH], &Device::flex());
    Batch::new(x.clone()).target(x)
}

/// The peak heap of forwards and backwards, once the pipeline is warm.
fn heap(schedule: &str) -> usize {
    settle();
    let builder = Pipeline::builder().schedule(schedule, Size::new(2, MICROBATCHES));
    let builder = builder.devices(vec![Device::flex()]).stages(|at| {
        let wide = wide(&at.device);
        match at.is_last() {
            true => StageBox::with_loss(wide, |y: Tensor<3>, target: Tensor<3>| (y - target).square().mean()),
            false => StageBox::new(wide),
        }
    });
    let mut pipeline = builder.build().unwrap();
    let mut gradients = || {
        drop(pipeline.accumulate(batch_of(MICROBATCHES)).unwrap());
        drop(pipeline.take_gradients().unwrap());
    };
    gradients();
    peak_of(gradients)
}

#[test]
fn gpipe_needs_more_heap_than_1f1b_at_many_microbatches() {
    let _turn = turn();
    let (gpipe, one_f_one_b) = (heap("GPipe"), heap("1F1B"));
    println!("peak heap of a step: GPipe {gpipe} bytes, 1F1B {one_f_one_b} bytes");
    // Rank 0 holds 16 microbatches against 2, rank 1 holds 16 against 1. The memory that does not grow with them is
    // small.
    assert!(gpipe > 3 * one_f_one_b, "GPipe {gpipe} bytes, 1F1B {one_f_one_b} bytes");
}
