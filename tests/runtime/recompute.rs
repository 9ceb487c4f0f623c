//! A stage that recomputes its activations gives the same numbers as one that keeps them, and the plan's memory
//! accounts for it.

use crate::cases::{Case, Text, read};
use crate::parity::{Plain, assert_equal, builder};
use burn::module::{Module, Param};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use burn_pipeline::cost::{LinkCosts, Profile, StageCost};
use burn_pipeline::payload::{Boundary, Payload};
use burn_pipeline::plan::Op;
use burn_pipeline::schedule::{Chunks, Schedule, Size, all, by_name};
use burn_pipeline::simulate::{SimulateOptions, simulate};
use burn_pipeline::stage::{Accumulation, SingleStage, SplitBackward, Stage, StageBox, StageError};
use burn_pipeline::train::{Builder, Pipeline, StageContext, StepReport};
use pipeline_tests::device::{device, few};
use pipeline_tests::noisy;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const RATE: f64 = 1e-2;
const SAMPLES: usize = 6;

fn size(schedule: &dyn Schedule, ranks: usize) -> Size {
    let chunks = match schedule.info().chunks {
        Chunks::Exactly(chunks) => chunks,
        Chunks::Any => 2,
    };
    Size { ranks, chunks, microbatches: SAMPLES }
}

fn recomputed(at: &StageContext) -> StageBox {
    Text::stage(at).recomputed(true)
}

/// Recomputes in every other stage.
fn some_recomputed(at: &StageContext) -> StageBox {
    Text::stage(at).recomputed(at.index.is_multiple_of(2))
}

#[test]
fn recomputed_stages_equal_the_plain_loop_bit_for_bit() {
    let plain = Plain::new(&Text::new(SAMPLES), SAMPLES, SAMPLES);
    for name in few(vec!["GPipe", "1F1B", "Interleaved1F1B", "ZBVZeroBubble"], 1) {
        for ranks in few(vec![1, 4, 2], 1) {
            let schedule = by_name(name).unwrap();
            let size = size(schedule.as_ref(), ranks);
            for (way, split) in [("eager", SplitBackward::Eager), ("captured", SplitBackward::Captured)] {
                let builder = builder::<Text>(schedule.as_ref(), size).split(split);
                let builder = builder.accumulation(Accumulation::Ordered);
                let place = format!("{name} on {ranks} ranks, {way}");
                let assert_equal = |builder: Builder| {
                    assert_equal(&Text::new(SAMPLES), &mut builder.build().unwrap(), &plain, &place);
                };
                assert_equal(builder.clone().stages(recomputed));
                if ranks == 4 {
                    assert_equal(builder.stages(some_recomputed));
                }
            }
        }
    }
}

#[test]
fn every_other_schedule_recomputes_too() {
    let plain = Plain::new(&Text::new(8), 8, 8);
    for schedule in all() {
        let name = schedule.info().name;
        let size = Size { microbatches: 8, ..size(schedule.as_ref(), 2) };
        if ["ForwardOnly", "GPipe", "1F1B", "Interleaved1F1B", "ZBVZeroBubble"].contains(&name) {
            continue;
        }
        let builder = builder::<Text>(schedule.as_ref(), size).accumulation(Accumulation::Ordered);
        assert_equal(&Text::new(8), &mut builder.stages(recomputed).build().unwrap(), &plain, name);
    }
}

fn losses(builder: Builder) -> Vec<f64> {
    let mut pipeline = builder.build().unwrap();
    let mut losses: Vec<f64> = (0..3).map(|step| pipeline.step(noisy::batch(step), RATE).unwrap().loss).collect();
    losses.push(pipeline.eval(noisy::batch(9)).unwrap().loss.unwrap());
    losses
}

#[test]
fn noise_is_drawn_again_and_running_statistics_are_counted_once() {
    for name in ["GPipe", "1F1B", "ZBVZeroBubble"] {
        let kept = losses(noisy::builder(name).seed(3));
        let recomputed = noisy::builder(name).seed(3).stages(|at| noisy::stage(at).recomputed(true));
        assert_eq!(losses(recomputed), kept, "{name}");
    }
}

#[test]
fn captured_noise_is_drawn_again_too() {
    for name in ["1F1B", "ZBVZeroBubble"] {
        let captured = || noisy::builder(name).split(SplitBackward::Captured);
        let kept = losses(captured().seed(3).stages(noisy::drawing));
        assert_eq!(losses(captured().seed(3).stages(|at| noisy::drawing(at).recomputed(true))), kept, "{name}");
        assert_ne!(losses(captured().seed(4).stages(noisy::drawing)), kept, "{name}");
        let unseeded = captured().stages(|at| noisy::drawing(at).recomputed(true));
        let error = unseeded.build().unwrap().step(noisy::batch(0), RATE).unwrap_err().to_string();
        assert!(error.contains("`Builder::seed`"), "{error}");
    }
}

#[test]
fn a_forward_that_draws_without_a_seed_is_refused() {
    let builder = noisy::builder("1F1B").stages(|at| noisy::stage(at).recomputed(true));
    let error = builder.build().unwrap().step(noisy::batch(0), RATE).unwrap_err().to_string();
    assert!(error.contains("its forward gives other numbers when it runs again"), "{error}");
    assert!(error.contains("`Builder::seed`"), "{error}");
}

/// From some forward on, multiplies by the number of forwards.
#[derive(Module, Debug)]
struct Late {
    weight: Param<Tensor<1>>,
    #[module(skip)]
    forwards: Arc<AtomicUsize>,
}

impl Stage for Late {
    type Input = Tensor<1>;
    type Extra = ();
    type Output = Tensor<1>;

    fn forward(&self, x: Tensor<1>, (): ()) -> Tensor<1> {
        let before = self.forwards.fetch_add(1, Ordering::Relaxed);
        let y = x * self.weight.val();
        if before < 10 { y } else { y.mul_scalar(before as f32) }
    }
}

#[test]
fn a_forward_that_repeats_itself_at_first_and_then_counts_is_refused_when_it_does() {
    let ones = |device: &Device| Tensor::<1>::ones([3], device);
    let late = Late { weight: Param::from_tensor(ones(&device().autodiff())), forwards: Arc::default() };
    let mut stage = SingleStage::new(StageBox::new(late).recomputed(true), SplitBackward::Eager, false);
    let mut run = |microbatch| -> Result<Vec<f32>, StageError> {
        let outputs = stage.forward(microbatch, ones(&device()).into_payload(), Payload::default())?;
        let gradients = stage.backward(microbatch, outputs.tensors().cloned().map(Some).collect())?;
        Ok(read(gradients[0].as_ref().unwrap()))
    };
    for microbatch in 0..5 {
        assert_eq!(run(microbatch).unwrap(), [1.0; 3]);
    }
    let error = run(5).unwrap_err().to_string();
    assert!(error.contains("its forward gives other numbers when it runs again"), "{error}");
}

/// A step's report, of captured stages.
fn stepped(name: &str, stage: fn(&StageContext) -> StageBox) -> (Pipeline, burn_pipeline::train::StepReport) {
    let schedule = by_name(name).unwrap();
    let size = size(schedule.as_ref(), 2);
    let builder = builder::<Text>(schedule.as_ref(), size).split(SplitBackward::Captured).stages(stage);
    let mut pipeline = builder.optimizer(|| AdamWConfig::new().init()).build().unwrap();
    let report = pipeline.step(Text::new(SAMPLES).batch(), RATE).unwrap();
    (pipeline, report)
}

#[test]
fn a_stage_that_recomputes_holds_its_input_alone_until_its_backward() {
    for name in ["GPipe", "ZBVZeroBubble"] {
        let ((_, kept), (_, recomputed)) = (stepped(name, Text::stage), stepped(name, recomputed));
        assert_eq!(recomputed.peak_held, kept.peak_held);
        for (stage, (kept, recomputed)) in kept.activations.iter().zip(&recomputed.activations).enumerate() {
            let (kept, recomputed) = (kept.unwrap(), recomputed.unwrap());
            assert!(recomputed.after_forward * 4 < kept.after_forward, "{name}, stage {stage}: {recomputed:?}");
            assert_eq!(recomputed.after_forward + recomputed.recomputed, kept.after_forward);
            assert_eq!(recomputed.after_input, kept.after_input);
        }
    }
}

#[test]
fn the_plan_s_memory_and_time_know_of_recomputation() {
    let size = Size::new(4, 8);
    let plan = by_name("1F1B").unwrap().build(size).unwrap();
    let kept = StageCost { forward: 1.0, backward: Some(2.0), activation_bytes: 100.0, ..StageCost::default() };
    let of = |cost: StageCost| {
        let profile = Profile::new(vec![cost; 4], LinkCosts::default()).unwrap();
        simulate(&plan, &profile, &SimulateOptions::default()).unwrap()
    };
    let (kept, recomputed) = (of(kept), of(kept.recomputing(10.0)));
    // (m + p - 1) times forward and backward, and a backward is one forward longer.
    assert_eq!((kept.makespan, recomputed.makespan), (11.0 * 3.0, 11.0 * 4.0));
    for rank in 0..4 {
        // Rank r of p holds p - r microbatches, one of which at a time is whole.
        let held = (4 - rank) as f64;
        assert_eq!(kept.ranks[rank].peak_bytes, held * 100.0);
        assert_eq!(recomputed.ranks[rank].peak_bytes, held * 10.0 + 90.0);
        assert_eq!(recomputed.ranks[rank].memory.last().unwrap().total(), 0.0);
    }
}

#[test]
fn the_split_backward_holds_what_it_recomputed_until_w() {
    let size = Size { ranks: 2, chunks: 2, microbatches: 4 };
    let plan = by_name("ZBVZeroBubble").unwrap().build(size).unwrap();
    let kept = StageCost {
        forward: 1.0,
        input: Some(1.0),
        weight: Some(1.0),
        activation_bytes: 100.0,
        freed_at_input_bytes: 60.0,
        ..StageCost::default()
    };
    let recomputed = kept.recomputing(10.0);
    assert_eq!(
        (recomputed.input_backward(), recomputed.weight_backward(), recomputed.full_backward()),
        (2.0, 1.0, 3.0)
    );
    let profile = Profile::new(vec![recomputed; 4], LinkCosts::default()).unwrap();
    let simulation = simulate(&plan, &profile, &SimulateOptions::default()).unwrap();
    for (rank, report) in simulation.ranks.iter().enumerate() {
        // Follows the row by hand: F keeps 10, I or B has 100 while it runs, I keeps 40, W and B nothing.
        let (mut held, mut peak) = (0.0_f64, 0.0_f64);
        for task in plan.tasks(rank) {
            let (during, after) = match task.op() {
                Op::Forward => (100.0, 10.0),
                Op::BackwardInput => (90.0, 30.0),
                Op::BackwardWeight => (0.0, -40.0),
                Op::Backward => (90.0, -10.0),
                _ => continue,
            };
            peak = peak.max(held + during);
            held += after;
        }
        assert_eq!((report.peak_bytes, held), (peak, 0.0), "rank {rank}");
    }
}

#[test]
fn a_measured_profile_tells_what_is_kept_and_what_is_recomputed() {
    let (pipeline, report) = stepped("1F1B", recomputed);
    let profile = StepReport::profile(pipeline.placement(), std::slice::from_ref(&report)).unwrap();
    for (cost, activation) in profile.stages().iter().zip(&report.activations) {
        let activation = activation.unwrap();
        assert_eq!(cost.activation_bytes, activation.after_forward as f64);
        assert_eq!(cost.recomputed_bytes, activation.recomputed as f64);
        assert!(cost.recomputed_bytes > cost.activation_bytes);
    }
}
