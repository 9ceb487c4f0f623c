//! What sharding parameters saves: the heap of two replicas of two ranks, beside what is predicted.

use crate::heap::{live, peak_of, settle, turn};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use burn_pipeline::cost::{Links, Profile, StageCost};
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::simulate::{SimulateOptions, simulate};
use burn_pipeline::stage::{Batch, Stage, StageBox, init_seeded};
use burn_pipeline::train::Pipeline;

/// A layer's weight is 1 MiB; a microbatch's activations are 2 KiB.
const WIDTH: usize = 512;
const WEIGHT: usize = WIDTH * WIDTH * size_of::<f32>();
const RANKS: usize = 2;
const CHUNKS: usize = 4;
const REPLICAS: usize = 2;
const MICROBATCHES: usize = 4;
/// Bytes of parameters of a rank's stages.
const HELD: usize = CHUNKS * WEIGHT;

#[derive(Module, Debug)]
struct Layer {
    linear: Linear,
}

impl Stage for Layer {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.linear.forward(x)
    }
}

/// Heap, in bytes, a rank.
#[derive(Debug, Clone, Copy)]
struct Heap {
    /// Between two steps.
    kept: usize,
    /// At the highest point of a step.
    peak: usize,
    /// What the simulator predicts of gathered parameters, at their most.
    gathered: usize,
}

/// Two steps warm up; `most` is how many stages may be gathered, where parameters are sharded.
fn heap(most: Option<usize>) -> Heap {
    settle();
    let before = live();
    let size = Size { ranks: RANKS, chunks: CHUNKS, microbatches: MICROBATCHES };
    let mut builder = Pipeline::builder()
        .schedule(by_name("Interleaved1F1B").unwrap(), size)
        .devices(vec![Device::flex()])
        .optimizer(|| AdamWConfig::new().init())
        .data_parallel(REPLICAS)
        .stages(|at| {
            let linear = LinearConfig::new(WIDTH, WIDTH).with_bias(false);
            let linear = init_seeded(at.index as u64, &at.device, |device| linear.init(device));
            let layer = Layer { linear };
            let stage = match at.is_last() {
                true => StageBox::with_loss(layer, |y: Tensor<2>, target: Tensor<2>| (y - target).square().mean()),
                false => StageBox::new(layer),
            };
            stage.recomputed(true)
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
    let beyond = peak_of(|| drop(pipeline.step(batch(), 1e-3).unwrap()));
    let stage = StageCost { forward: 1.0, backward: Some(2.0), weight_bytes: WEIGHT as f64, ..StageCost::default() };
    let stage = if most.is_some() { stage.sharded(REPLICAS) } else { stage };
    let profile = Profile::new(vec![stage; RANKS * CHUNKS], Links::default()).unwrap();
    let plan = pipeline.plan(MICROBATCHES).unwrap();
    let simulated = simulate(plan.plan(), &profile, &SimulateOptions::default()).unwrap();
    let most_of = |rank: usize| simulated.ranks[rank].memory.iter().map(|point| point.unsharded).fold(0.0, f64::max);
    assert_eq!(simulated.ranks[0].weight_bytes as usize, HELD / if most.is_some() { REPLICAS } else { 1 });
    let ranks = RANKS * REPLICAS;
    Heap { kept: kept / ranks, peak: (kept + beyond) / ranks, gathered: most_of(0).max(most_of(1)) as usize }
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[test]
fn a_sharded_rank_keeps_its_pieces_and_gathers_what_the_plan_says() {
    let _turn = turn();
    let (whole, all, one) = (heap(None), heap(Some(CHUNKS)), heap(Some(1)));
    for (name, heap) in [("whole", whole), ("sharded, all gathered", all), ("sharded, one gathered", one)] {
        println!(
            "{name}: a rank keeps {:.2} MiB between steps, {:.2} MiB at most; gathered as simulated: {:.2} MiB",
            mib(heap.kept),
            mib(heap.peak),
            mib(heap.gathered)
        );
    }
    // Parameters and two moments of AdamW; a tenth of a layer more for everything else.
    let close = |bytes: usize, predicted: usize| bytes.abs_diff(predicted) < WEIGHT / 10;
    assert!(close(whole.kept, 3 * HELD), "{whole:?}");
    assert!(close(all.kept, 3 * HELD / REPLICAS) && close(one.kept, 3 * HELD / REPLICAS), "{all:?}, {one:?}");
    // Between the two ways to shard, gathered parameters are all that differs.
    assert_eq!((all.gathered, one.gathered), (HELD, WEIGHT));
    let (measured, predicted) = (all.peak - one.peak, all.gathered - one.gathered);
    println!("fewer gathered save {:.2} MiB, {:.2} MiB as simulated", mib(measured), mib(predicted));
    assert!(measured * 2 > predicted && measured < predicted * 3 / 2, "{measured} for {predicted}");
    assert!(one.peak * 4 < whole.peak * 3, "{one:?} for {whole:?}");
}
