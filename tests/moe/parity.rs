//! Router gradients and auxiliary losses of a pipelined model equal those of `main + auxiliary` on one device, for
//! every schedule, with and without accumulation, for any number of microbatches, even and uneven.

use crate::cases::{Distance, builder, config, distance, pipelined, plain};
use burn_pipeline::plan::PlacementKind;
use burn_pipeline::schedule::{Chunks, Schedule, Size, all};
use pipeline_examples::moe::gpt::MoeGptConfig;
use pipeline_tests::device::few;

/// The allowed difference of gradients: their sums have the same terms in another order.
pub(crate) const ROUNDING: f64 = 2e-5;

/// All schedules that train, at two ranks.
pub(crate) fn schedules() -> Vec<(Box<dyn Schedule>, usize)> {
    let sized = |schedule: Box<dyn Schedule>| {
        let chunks = match schedule.info().chunks {
            Chunks::Exactly(n) => n,
            Chunks::Any => 2,
        };
        (schedule, chunks)
    };
    all().into_iter().filter(|schedule| schedule.info().name != "ForwardOnly").map(sized).collect()
}

pub(crate) fn assert_close(distance: &Distance, place: &str) {
    let Distance { routers, others, observed, loss } = *distance;
    assert!(routers < ROUNDING, "routers' gradients are {routers:e} off: {place}");
    assert!(others < ROUNDING, "gradients are {others:e} off: {place}");
    assert!(observed < 1e-6, "auxiliary losses are {observed:e} off: {place}");
    assert!(loss < 1e-5, "the main loss is {loss:e} off: {place}");
}

/// The batches of a step: one, or three of different sizes.
pub(crate) fn batches(accumulation: usize, microbatches: usize, uneven: bool) -> Vec<usize> {
    let samples = if uneven { microbatches + microbatches / 2 + 1 } else { microbatches };
    (0..accumulation).map(|batch| if uneven { samples + batch } else { samples }).collect()
}

/// Asserts that every schedule equals the model on one device. A case is the number of batches of a step, the
/// microbatches, and whether they are uneven.
pub(crate) fn assert_every_schedule(config: &MoeGptConfig, cases: &[(usize, usize, bool)]) {
    for &(accumulation, microbatches, uneven) in cases {
        let batches = batches(accumulation, microbatches, uneven);
        let expected = plain(config, &batches, microbatches);
        for (schedule, chunks) in schedules() {
            let size = Size { ranks: 2, chunks, microbatches };
            let place = format!("{}, {microbatches} microbatches, batches of {batches:?}", schedule.info().name);
            let builder = builder(schedule.as_ref(), size, config, |part, _| part);
            assert_close(&distance(config, &pipelined(builder, &batches, config), &expected), &place);
        }
    }
}

#[test]
fn every_schedule_equals_main_plus_auxiliary_on_one_device() {
    let config = config();
    let (mut proved, mut worst) = (0, 0.0f64);
    let schedules = schedules();
    for (accumulation, microbatches) in [(1, 1), (1, 2), (1, 3), (1, 5), (1, 8), (3, 1), (3, 4)] {
        let batches = batches(accumulation, microbatches, microbatches % 2 == 0);
        let expected = plain(&config, &batches, microbatches);
        for (schedule, chunks) in &schedules {
            let size = Size { ranks: 2, chunks: *chunks, microbatches };
            let name = schedule.info().name;
            let place = format!("{name}, {microbatches} microbatches, batches of {batches:?}");
            assert!(schedule.build(size).is_ok(), "{place}: refused");
            let builder = builder(schedule.as_ref(), size, &config, |part, _| part);
            let difference = distance(&config, &pipelined(builder, &batches, &config), &expected);
            assert_close(&difference, &place);
            worst = worst.max(difference.routers);
            proved += 1;
        }
    }
    assert!(schedules.iter().any(|(schedule, _)| schedule.info().placement == PlacementKind::Bidirectional));
    println!("{proved} configurations of {} schedules, routers' gradients at most {worst:e} off", schedules.len());
}

#[test]
fn more_ranks_and_stages_without_experts_make_no_difference() {
    let config = config();
    let all = vec![(1, 1, "GPipe"), (4, 1, "1F1B"), (4, 2, "ZBVZeroBubble"), (4, 2, "Interleaved1F1B")];
    for (ranks, chunks, name) in few(all, 1) {
        let schedule = burn_pipeline::schedule::by_name(name).unwrap();
        let expected = plain(&config, &[9, 7], 4);
        let builder = builder(schedule.as_ref(), Size { ranks, chunks, microbatches: 4 }, &config, |part, _| part);
        assert_close(&distance(&config, &pipelined(builder, &[9, 7], &config), &expected), name);
    }
}

#[test]
fn recomputed_stages_inject_once() {
    let config = config();
    for (name, chunks) in few(vec![("1F1B", 1), ("ZBVZeroBubble", 2)], 1) {
        let schedule = burn_pipeline::schedule::by_name(name).unwrap();
        let size = Size { ranks: 2, chunks, microbatches: 3 };
        let model = config.clone();
        let builder = builder(schedule.as_ref(), size, &config, |part, _| part);
        let builder = builder.stages(move |at| model.stage(model.part(at).unwrap(), at).unwrap().recomputed(true));
        let got = pipelined(builder, &[5, 4], &config);
        assert_close(&distance(&config, &got, &plain(&config, &[5, 4], 3)), name);
    }
}
