//! Captured stages inject the same gradients as eager ones: each replay gets the current scale.

use crate::cases::{builder, config, distance, pipelined, plain};
use crate::parity::assert_close;
use burn_pipeline::execute::Tuning;
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::stage::SplitBackward;
use pipeline_tests::device::few;

#[test]
fn captured_stages_equal_the_plain_loop_with_uneven_microbatches() {
    let config = config();
    for (name, chunks) in few(vec![("ZBH1", 1), ("DualPipe", 1), ("ZBVZeroBubble", 2)], 1) {
        let schedule = by_name(name).unwrap();
        // Sizes 3, 2, 2, 2 and then 2, 2, 2, 1: one program gets seeds of 1, 2/3 and 1/3.
        let batches = [9, 7];
        let size = Size { ranks: 2, chunks, microbatches: 4 };
        let builder = builder(schedule.as_ref(), size, &config, |part, _| part).split(SplitBackward::Captured);
        let got = pipelined(builder.clone(), &batches, &config);
        assert_close(&distance(&config, &got, &plain(&config, &batches, 4)), name);
        let shared = builder.clone().tuning(Tuning { record_every: 1000, ..Tuning::default() });
        assert_close(&distance(&config, &pipelined(shared, &batches, &config), &got), name);
        let mut pipeline = builder.build().unwrap();
        pipeline.accumulate(crate::cases::Text::new(1, 8).batch()).unwrap();
        for (stage, report) in pipeline.engines().unwrap() {
            assert!(report.captured, "{name}: stage {stage:?}: {}", report.reason);
        }
    }
}

#[test]
fn a_dropless_model_cannot_be_captured_and_defers_instead() {
    let config = config().with_capacity(burn_pipeline_moe::router::Capacity::Dropless);
    let schedule = by_name("ZBH1").unwrap();
    let size = Size { ranks: 2, chunks: 1, microbatches: 3 };
    let builder = builder(schedule.as_ref(), size, &config, |part, _| part).split(SplitBackward::Auto);
    let got = pipelined(builder.clone(), &[5], &config);
    assert_close(&distance(&config, &got, &plain(&config, &[5], 3)), "dropless");
    assert!(got.observed.iter().flat_map(|one| &one.layers).all(|layer| layer.dropped == 0.0));
    let mut pipeline = builder.build().unwrap();
    pipeline.accumulate(crate::cases::Text::new(1, 5).batch()).unwrap();
    for (stage, report) in pipeline.engines().unwrap() {
        assert!(!report.captured, "stage {stage:?}: {}", report.reason);
        assert!(report.deferred.is_some_and(|deferred| deferred.operations > 0), "stage {stage:?}");
    }
}
