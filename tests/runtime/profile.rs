//! A run's measurements, compared with its plan and its programs.

use crate::cases::{Case, Stack, Text};
use crate::parity::builder;
use burn_pipeline::cost::Profile;
use burn_pipeline::plan::PlacementKind;
use burn_pipeline::schedule::{Chunks, Schedule, Size, all, by_name};
use burn_pipeline::simulate::{SimulateOptions, simulate};
use burn_pipeline::stage::SplitBackward;
use burn_pipeline::train::StepReport;

fn chunks(schedule: &dyn Schedule) -> usize {
    match schedule.info().chunks {
        Chunks::Exactly(chunks) => chunks,
        Chunks::Any => 2,
    }
}

/// Asserts that the peaks of the bytes held for backwards, as recorded by the executor, equal the simulation of the
/// profile that it wrote.
fn assert_peaks_are_as_simulated<C: Case>(new: impl Fn(usize) -> C, schedule: &dyn Schedule, ranks: usize) {
    let microbatches = 8;
    let size = Size { ranks, chunks: chunks(schedule), microbatches };
    let builder = builder::<C>(schedule, size).split(SplitBackward::Captured);
    let mut pipeline = builder.build().unwrap();
    let report = pipeline.step(new(microbatches).batch(), 1e-3).unwrap();
    let profile = StepReport::profile(pipeline.placement(), std::slice::from_ref(&report)).unwrap();
    let plan = pipeline.plan(microbatches).unwrap();
    let simulated = simulate(plan.plan(), &profile, &SimulateOptions::default()).unwrap();
    let simulated: Vec<Option<usize>> = simulated
        .ranks
        .iter()
        .map(|rank| Some(rank.memory.iter().map(|point| point.activations).fold(0.0, f64::max) as usize))
        .collect();
    let name = schedule.info().name;
    assert_eq!(report.peak_held_bytes, simulated, "{name} on {ranks} ranks");
    assert!(simulated.iter().all(|bytes| bytes.is_some_and(|bytes| bytes > 0)));
}

#[test]
fn every_schedule_holds_at_most_the_bytes_that_the_simulator_says() {
    for schedule in all().into_iter().filter(|schedule| schedule.info().name != "ForwardOnly") {
        match schedule.info().placement {
            PlacementKind::Bidirectional => assert_peaks_are_as_simulated(Text::new, schedule.as_ref(), 4),
            _ => {
                assert_peaks_are_as_simulated(Text::new, schedule.as_ref(), 2);
                assert_peaks_are_as_simulated(Stack::new, schedule.as_ref(), 3);
            }
        }
    }
}

#[test]
fn a_profile_says_what_programs_leave_behind_and_is_read_back() {
    let builder = builder::<Text>(by_name("ZBH1").unwrap().as_ref(), Size::new(2, 4));
    let mut pipeline = builder.build().unwrap();
    let report = pipeline.step(Text::new(4).batch(), 1e-3).unwrap();
    let profile = StepReport::profile(pipeline.placement(), &[report]).unwrap();
    for ((_, engine), stage) in pipeline.engines().unwrap().iter().zip(profile.stages()) {
        let programs = &engine.programs[0];
        assert_eq!(stage.activation_bytes, programs.forward().held_bytes() as f64);
        let after_input = stage.activation_bytes - stage.freed_at_input_bytes;
        assert_eq!(after_input, programs.input().held_bytes() as f64);
    }
    let links = pipeline.measure_links().unwrap();
    let profile = profile.with_links(links).unwrap();
    let read = Profile::from_json(&profile.to_json()).unwrap();
    let bytes = |profile: &Profile| -> Vec<[f64; 2]> {
        profile.stages().iter().map(|stage| [stage.activation_bytes, stage.freed_at_input_bytes]).collect()
    };
    assert_eq!(bytes(&read), bytes(&profile));
    assert_eq!(read.links().between.len(), 2);
}

#[test]
fn links_are_measured_between_neighbours_both_ways_and_the_pipeline_goes_on() {
    for (name, ranks, expected) in [("1F1B", 4, 6), ("ZBVZeroBubble", 2, 2), ("Interleaved1F1B", 4, 8)] {
        let schedule = by_name(name).unwrap();
        let size = Size { ranks, chunks: chunks(schedule.as_ref()).min(8 / ranks), microbatches: 4 };
        let size = if name == "1F1B" { Size::new(ranks, 4) } else { size };
        let mut pipeline = builder::<Stack>(schedule.as_ref(), size).build().unwrap();
        let links = pipeline.measure_links().unwrap();
        assert_eq!(links.between.len(), expected, "{name}: {links:?}");
        for link in &links.between {
            assert!(link.latency > 0.0 && link.latency < 1.0, "{link:?}");
            assert!(link.bandwidth.is_none_or(|bandwidth| bandwidth > 0.0), "{link:?}");
        }
        pipeline.step(Stack::new(4).batch(), 1e-3).unwrap();
    }
}

#[test]
fn eager_stages_cannot_tell_what_they_hold() {
    let builder = builder::<Text>(by_name("1F1B").unwrap().as_ref(), Size::new(2, 4));
    let report = builder.build().unwrap().accumulate(Text::new(4).batch()).unwrap();
    assert_eq!(report.peak_held_bytes, vec![None; 2]);
    assert_eq!(report.activations, vec![None; 2]);
}
