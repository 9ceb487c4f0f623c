//! The peak heap of each rank equals the simulator's prediction from stages that were measured one by one, for
//! every engine and schedule.

use crate::heap::{HEAP, settle, turn};
use benches::heap::{peak_of_rank, restart};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::schedule::{Chunks, Size, by_name};
use burn_pipeline::simulate::{SimulateOptions, simulate};
use burn_pipeline::stage::{Batch, SplitBackward};
use burn_pipeline::train::{Builder, Pipeline};
use pipeline_examples::gpt::{GptConfig, Signal};

const RANKS: usize = 2;
const MICROBATCHES: usize = 8;
const SEQ: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Engine {
    Eager,
    Captured,
    Compiled,
    Recomputed,
}

fn builder(schedule: &str, engine: Engine) -> Builder {
    let chunks = match by_name(schedule).unwrap().info().chunks {
        Chunks::Exactly(chunks) => chunks,
        Chunks::Any => 2,
    };
    let config = GptConfig::new().with_d_model(128).with_layers(4).with_heads(4).with_seq(SEQ);
    let eager = matches!(engine, Engine::Eager | Engine::Recomputed);
    Pipeline::builder()
        .schedule(schedule, Size::new(RANKS, MICROBATCHES).with_chunks(chunks))
        .devices(vec![Device::flex()])
        .stages(move |at| config.stage(at).recomputed(engine == Engine::Recomputed))
        .optimizer(|| AdamWConfig::new().init())
        .split(if eager { SplitBackward::Eager } else { SplitBackward::Captured })
        .compile(engine == Engine::Compiled)
}

/// A batch with four sequences per microbatch.
fn batch(microbatches: usize) -> Batch {
    let samples = 4 * microbatches;
    let tokens = Tensor::<1, Int>::arange(0..(samples * SEQ) as i64, &Device::flex());
    let tokens = tokens.remainder_scalar(251).reshape([samples, SEQ]);
    Batch::new(Signal::Tokens(tokens.clone())).target(tokens)
}

/// The peak bytes of each rank: predicted, and measured over two steps.
fn peaks(schedule: &str, engine: Engine) -> [(f64, f64); RANKS] {
    settle();
    let builder = builder(schedule, engine);
    let profile = builder.measure_memory(batch(1), &HEAP).unwrap();
    let mut pipeline = builder.build().unwrap();
    // The first step allocates the optimizer's state.
    drop(pipeline.step(batch(MICROBATCHES), 1e-4).unwrap());
    restart();
    (0..2).for_each(|_| drop(pipeline.step(batch(MICROBATCHES), 1e-4).unwrap()));
    let plan = pipeline.plan(MICROBATCHES).unwrap();
    let simulated = simulate(plan.plan(), &profile, &SimulateOptions::default()).unwrap();
    let of = |rank: usize| (simulated.ranks[rank].peak_bytes, peak_of_rank(rank) as f64);
    std::array::from_fn(of)
}

#[test]
fn the_peak_of_each_rank_is_predicted_within_a_tenth_for_every_engine() {
    let _turn = turn();
    for engine in [Engine::Eager, Engine::Captured, Engine::Compiled, Engine::Recomputed] {
        let mut all = Vec::new();
        for schedule in ["GPipe", "1F1B", "ZBVZeroBubble", "DualPipe", "Chimera"] {
            for (rank, (predicted, measured)) in peaks(schedule, engine).into_iter().enumerate() {
                let ratio = predicted / measured;
                println!(
                    "{engine:?}, {schedule}, rank {rank}: {predicted:.0} predicted, {measured:.0} bytes, {ratio:.3}"
                );
                assert!(
                    (0.9..=1.1).contains(&ratio),
                    "{engine:?}, {schedule}, rank {rank}: {predicted} for {measured}"
                );
                all.push((predicted, measured));
            }
        }
        // A configuration that is predicted to need more does need more.
        for (predicted, measured) in &all {
            for (less, needs) in all.iter().filter(|(less, _)| less * 1.1 < *predicted) {
                assert!(needs < measured, "{engine:?}: {predicted} and {less} predicted, {measured} and {needs} bytes");
            }
        }
    }
}
