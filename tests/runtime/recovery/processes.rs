//! Ranks that each hold a pipeline, as processes do, over links between threads and over TCP, continue together
//! after a failed call.

use super::{Extras, RATE, WIDTH, assert_undone, batch, builder, stages, weights};
use crate::faulty::{Fault, How, batch as numbered, faulty};
use crate::watchdog::within;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::Builder;
use burn_pipeline::link::{Link, TcpLink, Threads};
use burn_pipeline::payload::PayloadSpec;
use burn_pipeline::train::{Pipeline, PipelineError};
use std::time::Duration;

const MICROBATCHES: usize = 4;

/// The results of each rank.
fn each<T: Send>(
    tcp: bool,
    ranks: usize,
    make: impl Fn() -> Builder,
    run: impl Fn(usize, &mut Pipeline) -> T + Sync,
) -> Vec<T> {
    each_over((tcp, &|link| link), ranks, make, run)
}

/// Wraps an end of a link.
type Wrap<'a> = &'a (dyn Fn(Box<dyn Link>) -> Box<dyn Link> + Sync);

/// The same over links that are wrapped.
pub(super) fn each_over<T: Send>(
    (tcp, wrap): (bool, Wrap<'_>),
    ranks: usize,
    make: impl Fn() -> Builder,
    run: impl Fn(usize, &mut Pipeline) -> T + Sync,
) -> Vec<T> {
    let threads = Threads::new(ranks);
    std::thread::scope(|scope| {
        let rank = |rank: usize| {
            let (builder, mut link, run) = (make(), threads.link(rank, Device::flex()), &run);
            scope.spawn(move || {
                let link: Box<dyn Link> = match tcp {
                    false => Box::new(link),
                    true => Box::new(TcpLink::by_link(&mut link, Device::flex(), Duration::from_secs(20)).unwrap()),
                };
                run(rank, &mut builder.build_rank(wrap(link)).unwrap())
            })
        };
        let ranks: Vec<_> = (0..ranks).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn an_id_without_a_row_leaves_no_trace_in_any_process() {
    within(400, "ids without a row in processes", || {
        for tcp in [false, true] {
            for (schedule, open) in [(("1F1B", 1), 0), (("1F1B", 1), 1), (("GPipe", 1), 2), (("ZBVZeroBubble", 2), 5)] {
                let extras = Extras { norm: false, dropout: true };
                let make = || builder(schedule, 3, MICROBATCHES).stages(stages(open, extras));
                let mut twin = make().build().unwrap();
                (0..3).for_each(|number| drop(twin.step(batch(number, MICROBATCHES, None), RATE).unwrap()));
                let all = each(tcp, 3, make, |_, pipeline| {
                    for number in 0..3 {
                        for microbatch in 0..MICROBATCHES {
                            let bad = || batch(9, MICROBATCHES, Some(microbatch));
                            assert_undone(pipeline.step(bad(), RATE), true, "panicked");
                            assert_undone(pipeline.eval(bad()), false, "panicked");
                        }
                        pipeline.step(batch(number, MICROBATCHES, None), RATE).unwrap();
                    }
                    weights(pipeline)
                });
                let expected = weights(&mut twin);
                assert!(all.iter().all(|got| *got == expected), "{schedule:?}, stage {open}, over TCP: {tcp}");
            }
        }
    });
}

#[test]
fn replicas_and_shards_in_processes_go_on() {
    within(300, "replicas in processes", || {
        for sharded in [false, true] {
            let make = || {
                let builder = builder(("1F1B", 1), 2, 4).accumulation(burn_pipeline::Accumulation::AsTheyCome);
                builder.stages(stages(1, Extras::default())).data_parallel(2).sharded(sharded)
            };
            let mut twin = make().build().unwrap();
            twin.step(batch(0, 4, None), RATE).unwrap();
            let all = each(true, 4, make, |_, pipeline| {
                for microbatch in 0..4 {
                    assert_undone(pipeline.step(batch(9, 4, Some(microbatch)), RATE), true, "panicked");
                }
                pipeline.step(batch(0, 4, None), RATE).unwrap();
                weights(pipeline)
            });
            assert!(all.iter().all(|got| *got == weights(&mut twin)), "sharded: {sharded}");
        }
    });
}

#[test]
fn a_step_on_which_processes_disagree_leaves_no_gradients() {
    within(300, "processes that disagree", || {
        for sharded in [[false; 2], [true; 2], [false, true]] {
            let make = || {
                let builder = builder(("1F1B", 1), 2, 4).accumulation(burn_pipeline::Accumulation::AsTheyCome);
                let plain = stages(1, Extras::default());
                builder.stages(move |at| plain(at).sharded(sharded[at.index])).data_parallel(2)
            };
            let mut twin = make().build().unwrap();
            twin.step(batch(0, 4, None), RATE).unwrap();
            let all = each(true, 4, make, |rank, pipeline| {
                let (odd, other) = (rank == 3, || batch(9, 4, None));
                let mut refused = vec![pipeline.step(other(), if odd { 2.0 * RATE } else { RATE }).map(drop)];
                refused.push(if odd { pipeline.accumulate(other()) } else { pipeline.step(other(), RATE) }.map(drop));
                // Shards are gathered from all replicas.
                if sharded[1] {
                    let module = |pipeline: &mut Pipeline| pipeline.module::<super::Layer>(0).map(drop);
                    refused.push(if odd { module(pipeline) } else { pipeline.step(other(), RATE).map(drop) });
                }
                for refused in refused {
                    assert!(matches!(refused, Err(PipelineError::Diverged { rank: 3, .. })), "{refused:?}");
                }
                pipeline.step(batch(0, 4, None), RATE).unwrap();
                weights(pipeline)
            });
            assert!(all.iter().all(|got| *got == weights(&mut twin)), "sharded: {sharded:?}");
        }
    });
}

#[test]
fn a_refuted_declaration_leaves_no_trace_in_any_process() {
    within(180, "a refuted declaration in processes", || {
        let spec = |width| {
            let device = Device::flex();
            PayloadSpec::of((Tensor::<2>::zeros([1, width], &device), Tensor::<2, Int>::zeros([1, 1], &device))).free(0)
        };
        let make = || {
            let plain = stages(9, Extras::default());
            // Only the middle stage's process can see that this is wrong.
            builder(("1F1B", 1), 3, MICROBATCHES).stages(move |at| match at.index {
                1 => plain(at).declare(spec(WIDTH), Some(spec(WIDTH + 1))),
                _ => plain(at),
            })
        };
        let mut twin = make().build().unwrap();
        twin.step(batch(0, MICROBATCHES, None), RATE).unwrap();
        for tcp in [false, true] {
            let all = each(tcp, 3, make, |_, pipeline| {
                for _ in 0..2 {
                    let refused = pipeline.metadata(batch(0, MICROBATCHES, None));
                    assert_undone(refused, false, "tensor 0 of the stage's output");
                }
                pipeline.step(batch(0, MICROBATCHES, None), RATE).unwrap();
                weights(pipeline)
            });
            assert!(all.iter().all(|got| *got == weights(&mut twin)), "over TCP: {tcp}");
        }
    });
}

#[test]
fn a_process_that_is_gone_still_closes_the_others() {
    within(180, "a process that is gone", || {
        let fault = Fault { stage: 1, microbatch: 1, how: How::PanicInForward };
        let make = || builder(("1F1B", 1), 3, 4).stages(faulty(Some(fault))).timeout(Duration::from_secs(20));
        each(true, 3, make, |rank, pipeline| {
            let error = pipeline.step(numbered(4), RATE).unwrap_err();
            assert!(matches!(error, PipelineError::Undone { .. }), "{error}");
            if rank == 2 {
                return pipeline.leave("it has had enough");
            }
            let error = pipeline.step(numbered(4), RATE).unwrap_err().to_string();
            assert!(error.contains("rank 2") && error.contains("it has had enough"), "{error}");
            assert!(matches!(pipeline.weights(), Err(PipelineError::Closed(_))));
        });
    });
}
