//! Compiled stages compute the same function of their inputs under every schedule, and the plain loop's up to
//! rounding.

use crate::cases::{Case, Stack, Text, WideText, range, read, sizes};
use crate::parity::builder;
use burn_pipeline::execute::Tuning;
use burn_pipeline::schedule::{Chunks, GPipe, Size, all, by_name};
use burn_pipeline::stage::{Accumulation, Matmuls};
use burn_pipeline::train::{BuildError, Builder};
use pipeline_tests::reference::Reference;

const RATE: f64 = 1e-3;

/// The losses of some steps, and the weights after them.
fn trained<C: Case>(case: &C, builder: Builder, steps: usize) -> (Vec<f64>, Vec<Vec<f32>>) {
    let mut pipeline = builder.accumulation(Accumulation::Ordered).build().unwrap();
    let losses = (0..steps).map(|_| pipeline.step(case.batch(), RATE).unwrap().loss).collect();
    for (place, engine) in pipeline.engines().unwrap() {
        assert!(engine.captured, "{place}: {}", engine.reason);
        let forward = engine.programs[0].forward().compiled().unwrap_or_default();
        assert!(forward.contains("fused"), "{place}: {forward}");
    }
    (losses, pipeline.weights().unwrap().iter().flatten().map(read).collect())
}

#[test]
fn every_schedule_gives_what_one_compiled_rank_gives_bit_for_bit() {
    every_schedule_gives_what_one_rank_gives(&Text::new(3), |builder| builder.compile(true));
}

#[test]
fn every_schedule_gives_what_one_rank_with_bf16_matmuls_gives_bit_for_bit() {
    if can_round() {
        every_schedule_gives_what_one_rank_gives(&Text::new(3), |builder| builder.matmuls(Matmuls::Bf16));
    }
}

#[test]
fn every_schedule_gives_what_one_rank_with_split_matmuls_gives_bit_for_bit() {
    if can_split() {
        every_schedule_gives_what_one_rank_gives(&WideText::new(3), |builder| builder.matmuls(Matmuls::Bf16x6));
    }
}

/// Why a pipeline with these matmuls is refused here.
fn refused(matmuls: Matmuls) -> Option<BuildError> {
    let schedule = by_name("1F1B").unwrap();
    builder::<Text>(schedule.as_ref(), Size::new(2, 2)).matmuls(matmuls).build().map(drop).err()
}

/// Returns true if this processor splits matmuls: if it has matrix tiles. Otherwise pipelines with them are refused.
fn can_split() -> bool {
    #[cfg(target_os = "linux")]
    let has_tiles = std::fs::read_to_string("/proc/cpuinfo").unwrap().contains("amx_bf16");
    #[cfg(not(target_os = "linux"))]
    let has_tiles = false;
    for matmuls in [Matmuls::Bf16x3, Matmuls::Bf16x6] {
        match refused(matmuls) {
            None => assert!(has_tiles, "split without matrix tiles"),
            Some(BuildError::NoMatmuls { .. }) => assert!(!has_tiles, "refused with matrix tiles"),
            Some(other) => panic!("{other}"),
        }
    }
    has_tiles
}

/// Returns true if this processor has `bf16` matmuls. Otherwise pipelines with them are refused.
fn can_round() -> bool {
    #[cfg(target_arch = "x86_64")]
    let found = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl");
    #[cfg(not(target_arch = "x86_64"))]
    let found = false;
    match refused(Matmuls::Bf16) {
        None => assert!(found, "rounded without AVX-512"),
        Some(BuildError::NoMatmuls { .. }) => assert!(!found, "refused with AVX-512"),
        Some(other) => panic!("{other}"),
    }
    found
}

fn every_schedule_gives_what_one_rank_gives<C: Case>(case: &C, compiled: impl Fn(Builder) -> Builder) {
    let microbatches = 3;
    let alone = trained(case, compiled(builder::<C>(&GPipe, Size::new(1, microbatches))), 2);
    let mut proved = 0;
    for schedule in all().into_iter().filter(|schedule| schedule.info().name != "ForwardOnly") {
        let chunks = match schedule.info().chunks {
            Chunks::Exactly(n) => n,
            Chunks::Any => 2,
        };
        for ranks in [2, 3, 4] {
            let size = Size { ranks, chunks, microbatches };
            if schedule.build(size).is_err() || ranks * chunks > 8 {
                continue;
            }
            let given = trained(case, compiled(builder::<C>(schedule.as_ref(), size)), 2);
            assert_eq!(given, alone, "{} on {ranks} ranks with {chunks} chunks", schedule.info().name);
            proved += 1;
        }
    }
    assert!(proved > 0);
    println!("{proved} configurations equal one compiled rank");
}

/// The largest relative difference of losses from the plain loop's.
fn apart<C: Case>(case: &C, microbatches: usize, steps: usize, compiled: impl Fn(Builder) -> Builder) -> f64 {
    let sizes = sizes(microbatches, microbatches);
    let mut reference = Reference::new(case.model());
    let plain =
        (0..steps).map(|_| reference.step(&sizes, RATE, None, |model, i| case.loss(model, range(&sizes, i))).loss);
    let plain: Vec<f64> = plain.collect();
    let (losses, _) = trained(case, compiled(builder::<C>(&GPipe, Size::new(2, microbatches))), steps);
    losses.iter().zip(plain).map(|(loss, plain)| (loss - plain).abs() / plain.abs()).fold(0.0, f64::max)
}

#[test]
fn losses_of_fifty_steps_are_the_plain_loops_within_one_in_a_hundred_thousand() {
    let compiled = |builder: Builder| builder.compile(true);
    let (text, stack) = (apart(&Text::new(4), 4, 50, compiled), apart(&Stack::new(4), 4, 50, compiled));
    println!("relative differences: transformer {text:.1e}, stack {stack:.1e}");
    assert!(text <= 1e-5 && stack <= 1e-5, "{text:e}, {stack:e}");
}

#[test]
fn losses_of_fifty_steps_with_bf16_matmuls_are_the_plain_loops_within_one_in_two_hundred() {
    if !can_round() {
        return;
    }
    let rounded = |builder: Builder| builder.matmuls(Matmuls::Bf16);
    let (text, stack) = (apart(&Text::new(4), 4, 50, rounded), apart(&Stack::new(4), 4, 50, rounded));
    println!("relative differences: transformer {text:.1e}, stack {stack:.1e}");
    // Operands differ by up to 2⁻⁸ of themselves, so losses must differ too.
    assert!((1e-6..=5e-3).contains(&text) && (1e-6..=5e-3).contains(&stack), "{text:e}, {stack:e}");
}

#[test]
fn losses_of_fifty_steps_with_split_matmuls_are_the_plain_loops_within_what_parts_leave() {
    if !can_split() {
        return;
    }
    let [three, six] = [Matmuls::Bf16x3, Matmuls::Bf16x6]
        .map(|matmuls| apart(&WideText::new(4), 4, 50, |builder| builder.matmuls(matmuls)));
    println!("relative differences: three products {three:.1e}, six {six:.1e}");
    assert!(six <= 1e-5 && six < three && three <= 1e-4, "{three:e}, {six:e}");
}

/// The bytes that all stages of a transformer hold for a microbatch after its forward, and the engines.
fn held(compiled: impl Fn(Builder) -> Builder) -> (usize, String) {
    let schedule = by_name("ZBH1").unwrap();
    let mut pipeline = compiled(builder::<Text>(schedule.as_ref(), Size::new(2, 2))).build().unwrap();
    pipeline.step(Text::new(2).batch(), RATE).unwrap();
    let engines = pipeline.engines().unwrap();
    let bytes = engines.iter().map(|(_, engine)| engine.programs[0].forward().held_bytes()).sum();
    (bytes, engines[0].1.reason.clone())
}

#[test]
fn a_compiled_transformer_holds_less_from_forward_to_backward() {
    let (listed, compiled) = (held(|builder| builder).0, held(|builder| builder.compile(true)).0);
    println!("{listed} bytes as recorded, {compiled} compiled");
    assert!(compiled < listed * 9 / 10, "{compiled} bytes of {listed}");
}

#[test]
fn with_bf16_matmuls_a_transformer_holds_operands_in_half_of_the_bytes() {
    if !can_round() {
        return;
    }
    let (compiled, _) = held(|builder| builder.compile(true));
    let (rounded, reason) = held(|builder| builder.matmuls(Matmuls::Bf16));
    println!("{compiled} bytes compiled, {rounded} with bf16 matmuls; {reason}");
    assert!(rounded < compiled * 8 / 10, "{rounded} bytes of {compiled}");
    assert!(reason.ends_with("it is compiled, with bf16 matmuls"), "{reason}");
}

#[test]
fn merged_weights_and_bf16_matmuls_are_refused_together() {
    if !can_round() {
        return;
    }
    let schedule = by_name("ZBH1").unwrap();
    let builder = builder::<Text>(schedule.as_ref(), Size::new(2, 2))
        .matmuls(Matmuls::Bf16)
        .tuning(Tuning { merge_weights: true, ..Tuning::default() });
    assert!(matches!(builder.build().map(drop), Err(BuildError::NotTogether(_))));
}
