//! Failing tasks: an id without a row in the table in one microbatch, on any stage, under any schedule and engine;
//! and a loss that panics.

use super::{Extras, Layer, RATE, assert_undone, batch, builder, data, loss, stages, weights};
use crate::faulty::{Fault, How, batch as numbered, faulty};
use crate::watchdog::within;
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use burn_pipeline::Batch;
use burn_pipeline::execute::Tuning;
use burn_pipeline::stage::{SplitBackward, Stage};
use burn_pipeline::train::Builder;
use pipeline_tests::reference::{Reference, weights as plain_weights};
use proptest::prelude::*;

const MICROBATCHES: usize = 4;
const SCHEDULES: [(&str, usize); 7] = [
    ("GPipe", 1),
    ("1F1B", 1),
    ("Interleaved1F1B", 2),
    ("ZBH1", 1),
    ("ZBVZeroBubble", 2),
    ("DualPipeV", 2),
    ("InterleavedZeroBubble", 2),
];

/// The whole model of the plain loop.
#[derive(Module, Debug)]
struct Whole {
    layers: Vec<Layer>,
}

impl Whole {
    fn new(layers: usize, extras: Extras) -> Self {
        let device = Device::flex().autodiff();
        Self { layers: (0..layers).map(|index| Layer::new(index, &device, extras, true)).collect() }
    }

    fn loss(&self, number: u64, microbatch: usize) -> Tensor<1> {
        let (x, ids, target) = data(number, MICROBATCHES, None);
        let samples = 4 * microbatch..4 * microbatch + 4;
        let input = (x.slice([samples.clone()]).autodiff(), ids.slice([samples.clone()]).autodiff());
        let output = self.layers.iter().fold(input, |input, layer| layer.forward(input, ()));
        loss(output, target.slice([samples]).autodiff())
    }
}

/// Steps over batches 0, 1 and 2, with failing calls of every kind in between. The weights must be the plain
/// loop's.
fn assert_as_if_it_never_was(builder: Builder, layers: usize, extras: Extras, microbatch: usize, what: &str) {
    let mut pipeline = builder.build().unwrap();
    let mut plain = Reference::new(Whole::new(layers, extras));
    for number in 0..3 {
        let bad = || batch(10 + number, MICROBATCHES, Some(microbatch));
        assert_undone(pipeline.step(bad(), RATE), true, &format!("microbatch {microbatch}"));
        assert_undone(pipeline.eval(bad()), false, &format!("microbatch {microbatch}"));
        assert_undone(pipeline.accumulate(bad()), true, "panicked");
        let progress = pipeline.progress();
        assert_eq!((progress.steps, progress.batches), (number, number), "{what}");
        pipeline.step(batch(number, MICROBATCHES, None), RATE).unwrap();
        plain.step(&[4; MICROBATCHES], RATE, None, |model, i| model.loss(number, i));
    }
    // Burn keeps the last update of running statistics separately; a copy for evaluation includes it.
    assert!(weights(&mut pipeline) == plain_weights(&plain.model.valid()), "{what}");
}

#[test]
fn an_id_without_a_row_leaves_what_the_plain_loop_has_under_every_schedule() {
    within(400, "ids without a row", || {
        for (schedule, chunks) in SCHEDULES {
            let layers = 3 * chunks;
            for split in [SplitBackward::Eager, SplitBackward::Captured] {
                for (open, microbatch) in [(0, 0), (layers / 2, 3), (layers - 1, 2)] {
                    let what = format!("{schedule}, {split:?}, stage {open}, microbatch {microbatch}");
                    let builder = builder((schedule, chunks), 3, MICROBATCHES).split(split);
                    let builder = builder.stages(stages(open, Extras::default()));
                    assert_as_if_it_never_was(builder, layers, Extras::default(), microbatch, &what);
                }
            }
        }
    });
}

#[test]
fn running_statistics_go_back_to_what_they_were() {
    within(180, "running statistics", || {
        let extras = Extras { norm: true, dropout: false };
        for (open, microbatch) in [(0, 3), (1, 1), (2, 2)] {
            let builder = builder(("GPipe", 1), 3, MICROBATCHES).stages(stages(open, extras));
            assert_as_if_it_never_was(builder, 3, extras, microbatch, &format!("stage {open}"));
        }
    });
}

/// Asserts that a pipeline that got a failing batch before each batch holds the same weights as one that did not.
fn assert_twins(make: impl Fn() -> Builder, microbatches: usize, what: &str) {
    let (mut pipeline, mut twin) = (make().build().unwrap(), make().build().unwrap());
    for number in 0..3 {
        for microbatch in [0, microbatches - 1] {
            let bad = || batch(20 + number, microbatches, Some(microbatch));
            assert_undone(pipeline.step(bad(), RATE), true, "out of bounds");
            assert_undone(pipeline.eval(bad()), false, "out of bounds");
        }
        for one in [&mut pipeline, &mut twin] {
            one.step(batch(number, microbatches, None), RATE).unwrap();
        }
    }
    assert!(weights(&mut pipeline) == weights(&mut twin), "{what}");
}

#[test]
fn dropout_replicas_shards_and_compiled_stages_go_on_as_if_nothing_had_been() {
    within(400, "twins", || {
        let dropout = Extras { norm: false, dropout: true };
        type Change = (&'static str, fn(Builder) -> Builder);
        let changes: [Change; 6] = [
            ("plain", |b| b),
            ("compiled", |b| b.split(SplitBackward::Captured).compile(true)),
            ("merged", |b| {
                b.accumulation(burn_pipeline::Accumulation::AsTheyCome)
                    .tuning(Tuning { merge_weights: true, ..Tuning::default() })
            }),
            ("replicas", |b| b.data_parallel(2)),
            ("sharded", |b| b.accumulation(burn_pipeline::Accumulation::AsTheyCome).data_parallel(2).sharded(true)),
            ("clipped", |b| b.clip_norm(0.05)),
        ];
        for (name, change) in changes {
            for (schedule, chunks) in [("1F1B", 1), ("ZBVZeroBubble", 2)] {
                for open in [0, 2 * chunks - 1] {
                    let make = || change(builder((schedule, chunks), 2, 8).stages(stages(open, dropout)));
                    assert_twins(make, 8, &format!("{name}, {schedule}, stage {open}"));
                }
            }
        }
    });
}

#[test]
fn both_routes_of_a_bidirectional_schedule_go_on_as_if_nothing_had_been() {
    within(180, "routes", || {
        for schedule in ["DualPipe", "Chimera"] {
            for open in [0, 1] {
                let extras = Extras { norm: false, dropout: true };
                let make = || builder((schedule, 1), 2, 8).stages(stages(open, extras));
                assert_twins(make, 8, &format!("{schedule}, stage {open}"));
            }
        }
    });
}

#[test]
fn a_failed_batch_takes_what_was_accumulated_along_and_an_evaluation_does_not() {
    within(180, "accumulation", || {
        let make = || builder(("1F1B", 1), 2, MICROBATCHES).stages(stages(1, Extras { norm: false, dropout: true }));
        let (mut pipeline, mut twin) = (make().build().unwrap(), make().build().unwrap());
        let good = |number| batch(number, MICROBATCHES, None);
        pipeline.accumulate(good(7)).unwrap();
        assert_undone(pipeline.accumulate(batch(8, MICROBATCHES, Some(1))), true, "microbatch 1");
        assert_eq!(pipeline.progress(), twin.progress(), "the first batch is gone, too");
        for number in [0, 1] {
            pipeline.accumulate(good(number)).unwrap();
            // Accumulated gradients are kept.
            assert_undone(pipeline.eval(batch(8, MICROBATCHES, Some(3))), false, "microbatch 3");
            twin.accumulate(good(number)).unwrap();
        }
        for one in [&mut pipeline, &mut twin] {
            one.step(good(2), RATE).unwrap();
        }
        assert!(weights(&mut pipeline) == weights(&mut twin));
    });
}

#[test]
fn a_panic_in_the_loss_or_in_a_backward_leaves_the_weights_as_they_are() {
    within(180, "losses", || {
        for (schedule, chunks) in [("GPipe", 1), ("1F1B", 1), ("ZBVZeroBubble", 2)] {
            for how in [How::LossPanics, How::PanicInBackward, How::LossOfManyNumbers, How::WrongKind] {
                let last = 2 * chunks - 1;
                let stage = if how == How::WrongKind { 0 } else { last };
                let fault = Fault { stage, microbatch: 2, how };
                let mut pipeline = builder((schedule, chunks), 2, 4).stages(faulty(Some(fault))).build().unwrap();
                let before = weights(&mut pipeline);
                for _ in 0..3 {
                    assert!(pipeline.step(numbered(4), RATE).is_err(), "{how:?}");
                }
                if how == How::LossPanics {
                    assert_undone(pipeline.eval(numbered(4)), false, "a broken loss");
                }
                assert!(weights(&mut pipeline) == before, "{schedule}, {how:?}");
                // None of these ids belongs to the microbatch that fails.
                let x = Tensor::<2>::ones([4, 4], &Device::flex());
                let ids = Tensor::<2, burn::tensor::Int>::zeros([4, 1], &Device::flex());
                pipeline.step(Batch::new((x.clone(), ids)).target(x), RATE).unwrap();
                assert!(weights(&mut pipeline) != before, "{schedule}, {how:?}");
            }
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn random_failures_leave_no_trace(
        schedule in prop::sample::select(&SCHEDULES[..]),
        ranks in 1..4usize,
        factor in 1..3usize,
        open in 0..8usize,
        captured in any::<bool>(),
        fails in prop::collection::vec(prop::option::of(0..12usize), 1..6),
    ) {
        let microbatches = 2 * ranks * factor;
        let split = if captured { SplitBackward::Captured } else { SplitBackward::Auto };
        let make = || {
            let open = open % (ranks * schedule.1);
            let stages = stages(open, Extras { norm: false, dropout: true });
            builder(schedule, ranks, microbatches).split(split).stages(stages)
        };
        let (mut pipeline, mut twin) = (make().build().unwrap(), make().build().unwrap());
        for (number, fails) in fails.into_iter().enumerate() {
            if let Some(microbatch) = fails {
                let bad = || batch(40, microbatches, Some(microbatch % microbatches));
                assert_undone(pipeline.step(bad(), RATE), true, "panicked");
                assert_undone(pipeline.eval(bad()), false, "panicked");
            }
            for one in [&mut pipeline, &mut twin] {
                one.step(batch(number as u64, microbatches, None), RATE).unwrap();
            }
        }
        prop_assert!(weights(&mut pipeline) == weights(&mut twin));
    }
}
