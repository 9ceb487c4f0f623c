//! The heap that sharding parameters saves for two replicas of two ranks, compared with the prediction.

use crate::heap::{live, peak_of, settle, turn};
use burn::nn::LinearConfig;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use burn_pipeline::cost::{LinkCosts, Profile, StageCost};
use burn_pipeline::schedule::Size;
use burn_pipeline::simulate::{RankReport, SimulateOptions, simulate};
use burn_pipeline::stage::{Batch, SplitBackward, StageBox, init_seeded};
use burn_pipeline::train::Pipeline;
use pipeline_tests::layers::Layer;

/// A layer's weight takes 1 MiB, a microbatch's activations 2 KiB.
const WIDTH: usize = 512;
const WEIGHT: usize = WIDTH * WIDTH * size_of::<f32>();
const RANKS: usize = 2;
const CHUNKS: usize = 4;
const REPLICAS: usize = 2;
const MICROBATCHES: usize = 4;
/// The bytes of the parameters of a rank's stages.
const HELD: usize = CHUNKS * WEIGHT;

/// The heap of a rank, in bytes.
#[derive(Debug, Clone, Copy)]
struct Heap {
    /// Between two steps.
    kept: usize,
    /// The peak of sixteen steps.
    peak: usize,
    /// The simulator's prediction of the peak of gathered parameters.
    gathered: usize,
    /// The simulator's predictions between two steps, and of the peak.
    predicted: (usize, usize),
}

/// How stages run. Only the first way keeps no reference to parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Recomputed,
    Captured,
    Eager,
}

/// Measures after two steps of warm-up. `most` limits the stages that may be gathered, if parameters are sharded.
fn heap(most: Option<usize>, way: Way) -> Heap {
    settle();
    let before = live();
    let size = Size { ranks: RANKS, chunks: CHUNKS, microbatches: MICROBATCHES };
    let mut builder = Pipeline::builder()
        .schedule("Interleaved1F1B", size)
        .devices(vec![Device::flex()])
        .optimizer(|| AdamWConfig::new().init())
        .data_parallel(REPLICAS)
        .split(if way == Way::Captured { SplitBackward::Captured } else { SplitBackward::Eager })
        .stages(move |at| {
            let linear = LinearConfig::new(WIDTH, WIDTH).with_bias(false);
            let linear = init_seeded(at.index as u64, &at.device, |device| linear.init(device));
            let layer = Layer { linear };
            let stage = match at.is_last() {
                true => StageBox::with_loss(layer, |y: Tensor<2>, target: Tensor<2>| (y - target).square().mean()),
                false => StageBox::new(layer),
            };
            stage.recomputed(way == Way::Recomputed)
        });
    if let Some(most) = most {
        builder = builder.sharded(true).gathered_stages(most);
    }
    let mut pipeline = builder.build().unwrap();
    let batch = || {
        let x = Tensor::<2>::ones([MICROBATCHES * REPLICAS, WIDTH], &Device::flex());
        Batch::new(x.clone()).target(x)
    };
    for _ in 0..2 {
        drop(pipeline.step(batch(), 1e-3).unwrap());
    }
    settle();
    let kept = live() - before;
    // Ranks reach their peaks at the same time in some steps only, so the test takes the largest peak of several.
    let beyond = peak_of(|| (0..16).for_each(|_| drop(pipeline.step(batch(), 1e-3).unwrap())));
    let stage = StageCost {
        forward: 1.0,
        backward: Some(2.0),
        weight_bytes: WEIGHT as f64,
        gradient_bytes: WEIGHT as f64,
        // The two moments of AdamW.
        optimizer_bytes: 2.0 * WEIGHT as f64,
        ..StageCost::default()
    };
    let stage = if most.is_some() { stage.sharded(REPLICAS) } else { stage };
    let profile = Profile::new(vec![stage; RANKS * CHUNKS], LinkCosts::default()).unwrap();
    let plan = pipeline.plan(MICROBATCHES).unwrap();
    let simulated = simulate(plan.plan(), &profile, &SimulateOptions::default()).unwrap();
    let most_of = |rank: usize| simulated.ranks[rank].memory.iter().map(|point| point.unsharded).fold(0.0, f64::max);
    assert_eq!(simulated.ranks[0].weight_bytes as usize, HELD / if most.is_some() { REPLICAS } else { 1 });
    let mean = |of: fn(&RankReport) -> f64| (simulated.ranks.iter().map(of).sum::<f64>() / RANKS as f64) as usize;
    let predicted = (mean(|rank| rank.weight_bytes + rank.optimizer_bytes), mean(|rank| rank.peak_bytes));
    let ranks = RANKS * REPLICAS;
    let gathered = most_of(0).max(most_of(1)) as usize;
    Heap { kept: kept / ranks, peak: (kept + beyond) / ranks, gathered, predicted }
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[test]
fn a_sharded_rank_keeps_its_pieces_and_gathers_what_the_plan_says() {
    let _turn = turn();
    let heap = |most| heap(most, Way::Recomputed);
    let (whole, all, one) = (heap(None), heap(Some(CHUNKS)), heap(Some(1)));
    for (name, heap) in [("whole", whole), ("sharded, all gathered", all), ("sharded, one gathered", one)] {
        println!(
            "{name}: a rank keeps {:.2} MiB between steps, {:.2} MiB at most; as simulated: {:.2} and {:.2} MiB",
            mib(heap.kept),
            mib(heap.peak),
            mib(heap.predicted.0),
            mib(heap.predicted.1)
        );
        // A tenth for what the costs leave out: activations, messages and the optimizer's temporaries.
        let close = |bytes: usize, predicted: usize| bytes.abs_diff(predicted) * 10 < predicted;
        assert!(close(heap.kept, heap.predicted.0) && close(heap.peak, heap.predicted.1), "{name}: {heap:?}");
    }
    assert_eq!(whole.predicted.0, 3 * HELD);
    assert_eq!((all.predicted.0, one.predicted.0), (3 * HELD / REPLICAS, 3 * HELD / REPLICAS));
    // The two ways to shard differ only in the gathered parameters.
    assert_eq!((all.gathered, one.gathered), (HELD, WEIGHT));
    let (measured, predicted) = (all.peak - one.peak, all.gathered - one.gathered);
    println!("fewer gathered save {:.2} MiB, {:.2} MiB as simulated", mib(measured), mib(predicted));
    assert!(measured * 2 > predicted && measured < predicted * 3 / 2, "{measured} for {predicted}");
    assert!(one.peak * 4 < whole.peak * 3, "{one:?} for {whole:?}");
}

#[test]
fn captured_stages_let_go_of_gathered_parameters_between_forward_and_backward() {
    let _turn = turn();
    let saved = |way| {
        let (all, one) = (heap(Some(CHUNKS), way), heap(Some(1), way));
        let (measured, predicted) = (all.peak.saturating_sub(one.peak), all.gathered - one.gathered);
        println!("{way:?}: fewer gathered save {:.2} MiB, {:.2} MiB as simulated", mib(measured), mib(predicted));
        (measured, predicted)
    };
    let (measured, predicted) = saved(Way::Captured);
    assert!(measured * 3 > predicted * 2 && measured < predicted * 3 / 2, "{measured} for {predicted}");
    // Autodiff's graphs keep references to gathered parameters.
    let (measured, predicted) = saved(Way::Eager);
    assert!(measured * 2 < predicted, "{measured} for {predicted}");
}
