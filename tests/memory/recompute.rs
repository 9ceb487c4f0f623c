//! The heap that recomputing activations saves.

use crate::heap::{peak_of, settle, turn};
use crate::held::{MICROBATCHES, Wide, batch_of, wide};
use burn::tensor::{Device, Tensor};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{SplitBackward, StageBox};
use burn_pipeline::train::Pipeline;

/// The peak heap of forwards and backwards, once the pipeline is warm, and of an evaluation.
fn heap(schedule: &str, ranks: usize, split: SplitBackward, recompute: bool) -> (usize, usize) {
    settle();
    let builder = Pipeline::builder().schedule(schedule, Size::new(ranks, MICROBATCHES)).split(split);
    let builder = builder.devices(vec![Device::flex()]).stages(move |at| {
        let wide: Wide = wide(&at.device);
        let stage = match at.is_last() {
            true => StageBox::with_loss(wide, |y: Tensor<3>, target: Tensor<3>| (y - target).square().mean()),
            false => StageBox::new(wide),
        };
        stage.recomputed(recompute)
    });
    let mut pipeline = builder.build().unwrap();
    let mut gradients = || {
        drop(pipeline.accumulate(batch_of(MICROBATCHES)).unwrap());
        drop(pipeline.take_gradients().unwrap());
    };
    gradients();
    let step = peak_of(&mut gradients);
    let evaluation = peak_of(|| drop(pipeline.eval(batch_of(MICROBATCHES)).unwrap()));
    (step, evaluation)
}

#[test]
fn recomputing_stages_need_a_fraction_of_the_heap_where_many_microbatches_wait() {
    let _turn = turn();
    for (way, split) in [("eager", SplitBackward::Eager), ("captured", SplitBackward::Captured)] {
        for (schedule, ranks, at_least) in [("GPipe", 2, 3.0), ("1F1B", 4, 1.3)] {
            let (kept, _) = heap(schedule, ranks, split, false);
            let (recomputed, _) = heap(schedule, ranks, split, true);
            let factor = kept as f64 / recomputed as f64;
            println!(
                "{schedule} on {ranks} ranks, {way}: {kept} bytes kept, {recomputed} recomputed, {factor:.2} times less"
            );
            assert!(factor > at_least, "{schedule}, {way}: {kept} bytes kept, {recomputed} recomputed");
        }
    }
}

#[test]
fn an_evaluation_holds_neither_graphs_nor_gradients() {
    let _turn = turn();
    let (step, evaluation) = heap("GPipe", 2, SplitBackward::Eager, false);
    println!("GPipe: a step {step} bytes, an evaluation of the same batch {evaluation} bytes");
    // An evaluation holds all outputs, between the stages and in the report. A step also holds the activations of
    // three layers.
    assert!(evaluation * 2 < step, "a step {step} bytes, an evaluation {evaluation} bytes");
}
