//! Compiled stages are one function of their inputs whatever the schedule, and the plain loop's up to rounding.

use crate::cases::{Case, Stack, Text, range, read, sizes};
use crate::parity::builder;
use burn_pipeline::schedule::{Chunks, GPipe, Size, all, by_name};
use burn_pipeline::stage::Accumulation;
use burn_pipeline::train::Builder;
use pipeline_tests::reference::Reference;

const RATE: f64 = 1e-3;

/// Losses of some steps, and the weights after them.
fn trained<C: Case>(case: &C, builder: Builder, steps: usize) -> (Vec<f64>, Vec<Vec<f32>>) {
    let mut pipeline = builder.compile(true).accumulation(Accumulation::Ordered).build().unwrap();
    let losses = (0..steps).map(|_| pipeline.step(case.batch(), RATE).unwrap().loss).collect();
    for (place, engine) in pipeline.engines().unwrap() {
        assert!(engine.captured, "{place}: {}", engine.reason);
        let forward = engine.programs[0].forward().compiled().unwrap_or_default();
        assert!(forward.contains("fused"), "{place}: {forward}");
    }
    (losses, pipeline.weights().unwrap().iter().flatten().map(read).collect())
}

#[test]
fn every_family_gives_what_one_compiled_rank_gives_bit_for_bit() {
    let microbatches = 3;
    let case = Text::new(microbatches);
    let alone = trained(&case, builder::<Text>(&GPipe, Size::new(1, microbatches)), 2);
    let mut proved = 0;
    for schedule in all().into_iter().filter(|schedule| schedule.family().name != "ForwardOnly") {
        let chunks = match schedule.family().chunks {
            Chunks::Exactly(n) => n,
            Chunks::Any => 2,
        };
        for ranks in [2, 3, 4] {
            let size = Size { ranks, chunks, microbatches };
            if schedule.build(size).is_err() || ranks * chunks > 8 {
                continue;
            }
            let given = trained(&case, builder::<Text>(schedule.as_ref(), size), 2);
            assert_eq!(given, alone, "{} on {ranks} ranks with {chunks} chunks", schedule.family().name);
            proved += 1;
        }
    }
    println!("{proved} configurations equal one compiled rank");
}

/// The largest difference of losses from the plain loop's, relative to them.
fn apart<C: Case>(case: &C, microbatches: usize, steps: usize) -> f64 {
    let sizes = sizes(microbatches, microbatches);
    let mut reference = Reference::new(case.model());
    let plain =
        (0..steps).map(|_| reference.step(&sizes, RATE, None, |model, i| case.loss(model, range(&sizes, i))).loss);
    let plain: Vec<f64> = plain.collect();
    let (losses, _) = trained(case, builder::<C>(&GPipe, Size::new(2, microbatches)), steps);
    losses.iter().zip(plain).map(|(loss, plain)| (loss - plain).abs() / plain.abs()).fold(0.0, f64::max)
}

#[test]
fn losses_of_fifty_steps_are_the_plain_loops_within_one_in_a_hundred_thousand() {
    let (text, stack) = (apart(&Text::new(4), 4, 50), apart(&Stack::new(4), 4, 50));
    println!("relative differences: transformer {text:.1e}, stack {stack:.1e}");
    assert!(text <= 1e-5 && stack <= 1e-5, "{text:e}, {stack:e}");
}

#[test]
fn a_compiled_transformer_holds_less_from_forward_to_backward() {
    let held = |compile: bool| -> usize {
        let schedule = by_name("ZBH1").unwrap();
        let mut pipeline = builder::<Text>(schedule.as_ref(), Size::new(2, 2)).compile(compile).build().unwrap();
        pipeline.step(Text::new(2).batch(), RATE).unwrap();
        let engines = pipeline.engines().unwrap();
        engines.iter().map(|(_, engine)| engine.programs[0].forward().held_bytes()).sum()
    };
    let (listed, compiled) = (held(false), held(true));
    println!("{listed} bytes as recorded, {compiled} compiled");
    assert!(compiled < listed * 9 / 10, "{compiled} bytes of {listed}");
}
