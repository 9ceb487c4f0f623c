//! A failure while weights change: the pipeline says so, returns the weights, and can load a checkpoint.

use super::processes::each_over;
use super::{Extras, RATE, batch, builder, stages, weights};
use crate::watchdog::within;
use burn::optim::{ModuleOptimizer, Optimizer, SgdState};
use burn::tensor::{Device, Tensor};
use burn_pipeline::train::{Builder, CheckpointError, Checkpoints, Pipeline, PipelineError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::tempdir;

const MICROBATCHES: usize = 4;

/// Plain gradient descent that panics on one rank's second parameter while a flag is set.
#[derive(Clone)]
struct Breaking {
    rank: usize,
    set: Arc<AtomicBool>,
    seen: Arc<std::sync::atomic::AtomicUsize>,
}

impl Optimizer for Breaking {
    type State<const D: usize> = SgdState<D>;

    fn step<const D: usize>(
        &self,
        rate: f64,
        weight: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<SgdState<D>>,
    ) -> (Tensor<D>, Option<SgdState<D>>) {
        let here = std::thread::current().name().is_some_and(|name| name.starts_with(&format!("rank {} ", self.rank)));
        if here && self.set.load(Ordering::SeqCst) && self.seen.fetch_add(1, Ordering::SeqCst) == 1 {
            panic!("no momentum");
        }
        (weight - gradient.mul_scalar(rate), state)
    }

    fn to_device<const D: usize>(state: SgdState<D>, _: &Device) -> SgdState<D> {
        state
    }
}

fn breaking(rank: usize) -> (Pipeline, Arc<AtomicBool>) {
    let (builder, set) = breaking_builder(rank);
    (builder.build().unwrap(), set)
}

fn breaking_builder(rank: usize) -> (Builder, Arc<AtomicBool>) {
    let set = Arc::new(AtomicBool::new(false));
    let optimizer = Breaking { rank, set: set.clone(), seen: Arc::default() };
    let builder = builder(("1F1B", 1), 3, MICROBATCHES).stages(stages(0, Extras::default()));
    (builder.optimizer(move || ModuleOptimizer::from(optimizer.clone())), set)
}

fn good(number: u64) -> burn_pipeline::Batch {
    batch(number, MICROBATCHES, None)
}

#[test]
fn an_optimizer_that_panics_leaves_weights_that_can_be_read_and_a_load_heals() {
    for rank in 0..3 {
        within(180, "an optimizer that panics", move || {
            let (mut pipeline, set) = breaking(rank);
            let (mut twin, _) = breaking(rank);
            let folder = tempdir().unwrap();
            let saved = Checkpoints::new(folder.path().join("saved")).keep(1);
            for one in [&mut pipeline, &mut twin] {
                one.step(good(0), RATE).unwrap();
            }
            pipeline.save(&saved, &()).unwrap();
            let before = weights(&mut pipeline);
            set.store(true, Ordering::SeqCst);
            let error = pipeline.step(good(1), RATE).unwrap_err();
            assert!(matches!(error, PipelineError::HalfStepped(_)), "{error}");
            let said =
                format!("rank {rank} panicked while stepping the weights of stage {rank} in step 2: no momentum");
            assert!(error.to_string().starts_with(&said) && error.to_string().contains("load a checkpoint"), "{error}");
            // Three parameters per stage: the failing stage has stepped its first one, and the others are
            // unchanged.
            let after = weights(&mut pipeline);
            let changed: Vec<bool> = before.iter().zip(&after).map(|(before, after)| before != after).collect();
            assert!(changed[3 * rank] && !changed[3 * rank + 1] && !changed[3 * rank + 2], "{changed:?}");
            assert_eq!(pipeline.progress().steps, 1);
            assert_refuses(&mut pipeline, rank);
            // It must not replace an intact checkpoint.
            let refused = pipeline.save(&saved, &()).unwrap_err();
            assert!(matches!(refused, CheckpointError::HalfStepped), "{refused}");
            let beside = Checkpoints::new(folder.path().join("beside"));
            pipeline.save(&beside, &()).unwrap();
            let exported = folder.path().join("exported.safetensors");
            pipeline.export(&exported).unwrap();
            assert!(exported.exists() && pipeline.named_weights().is_ok());
            pipeline.load(&saved.latest().unwrap()).unwrap();
            set.store(false, Ordering::SeqCst);
            for one in [&mut pipeline, &mut twin] {
                one.step(good(1), RATE).unwrap();
            }
            assert!(weights(&mut pipeline) == weights(&mut twin), "rank {rank}");
        });
    }
}

/// Ranks that have stepped their weights are not ahead of the one that failed.
#[test]
fn an_optimizer_that_panics_in_one_process_half_steps_all_of_them() {
    for (rank, tcp) in [(0, true), (1, true), (2, false)] {
        within(180, "an optimizer that panics in a process", move || {
            let (twin, _) = breaking_builder(rank);
            let mut twin = twin.build().unwrap();
            (0..2).for_each(|number| drop(twin.step(good(number), RATE).unwrap()));
            let (make, set) = breaking_builder(rank);
            let folder = tempdir().unwrap();
            let saved = Checkpoints::new(folder.path());
            let all = each_over(
                (tcp, &|link| link),
                3,
                || make.clone(),
                |_, pipeline| {
                    pipeline.step(good(0), RATE).unwrap();
                    pipeline.save(&saved, &()).unwrap();
                    set.store(true, Ordering::SeqCst);
                    let error = pipeline.step(good(1), RATE).unwrap_err();
                    assert!(matches!(error, PipelineError::HalfStepped(_)), "{error}");
                    assert!(error.to_string().contains("no momentum"), "{error}");
                    assert!(pipeline.named_weights().is_ok());
                    set.store(false, Ordering::SeqCst);
                    pipeline.load(&saved.latest().unwrap()).unwrap();
                    pipeline.step(good(1), RATE).unwrap();
                    weights(pipeline)
                },
            );
            assert!(all.iter().all(|got| *got == weights(&mut twin)), "rank {rank}");
        });
    }
}

fn assert_refuses(pipeline: &mut Pipeline, rank: usize) {
    let errors = [
        pipeline.step(good(1), RATE).unwrap_err(),
        pipeline.accumulate(good(1)).unwrap_err(),
        pipeline.eval(good(1)).unwrap_err(),
        pipeline.take_gradients().unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(&error, PipelineError::Uneven(failure) if failure.rank == rank), "{error}");
        assert!(error.to_string().contains("no momentum"), "{error}");
    }
}
