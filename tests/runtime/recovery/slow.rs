//! The pipeline waits for user code that takes longer than the timeout, as long as its rank is alive.

use super::{Extras, RATE, batch, builder, stages};
use crate::watchdog::within;
use burn::store::SafetensorsStore;
use burn::tensor::Device;
use burn_pipeline::link::Threads;
use burn_pipeline::train::{Pipeline, Pretrained};
use burn_pipeline::{Builder, StageBox, StageContext};
use std::time::Duration;
use tempfile::tempdir;

const TIMEOUT: Duration = Duration::from_secs(2);
const SLOW: Duration = Duration::from_secs(5);

fn plain() -> Builder {
    builder(("1F1B", 1), 2, 4).stages(stages(0, Extras::default())).timeout(TIMEOUT)
}

/// A stage factory that is slow on one stage.
fn slow_factory(slow: usize) -> impl Fn(&StageContext) -> StageBox + Send + Sync + 'static {
    let sound = stages(0, Extras::default());
    move |at| {
        if at.index == slow {
            std::thread::sleep(SLOW);
        }
        sound(at)
    }
}

/// Both ranks as processes, over links between threads.
fn each(make: impl Fn() -> Builder, run: impl Fn(usize, &mut Pipeline) + Sync) {
    let links = Threads::new(2);
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (builder, link, run) = (make(), links.link(rank, Device::flex()), &run);
            scope.spawn(move || run(rank, &mut builder.build_rank(Box::new(link)).unwrap()));
        }
    });
}

#[test]
fn a_factory_that_takes_three_timeouts_is_waited_for() {
    within(180, "slow factories", || {
        for slow in [0, 1] {
            let mut pipeline = plain().stages(slow_factory(slow)).build().unwrap();
            pipeline.step(batch(0, 4, None), RATE).unwrap();
            each(
                || plain().stages(slow_factory(slow)),
                |_, pipeline| drop(pipeline.step(batch(0, 4, None), RATE).unwrap()),
            );
        }
    });
}

#[test]
fn pretrained_weights_that_come_slowly_are_waited_for() {
    within(180, "slow weights", || {
        let folder = tempdir().unwrap();
        let file = folder.path().join("model.safetensors");
        let mut pipeline = plain().build().unwrap();
        pipeline.export(&file).unwrap();
        pipeline.step(batch(0, 4, None), RATE).unwrap();
        let slow = Pretrained::new(move || {
            std::thread::sleep(SLOW);
            SafetensorsStore::from_file(&file)
        });
        pipeline.load_pretrained(&slow).unwrap();
        pipeline.step(batch(0, 4, None), RATE).unwrap();
        each(plain, |_, pipeline| {
            pipeline.load_pretrained(&slow).unwrap();
            pipeline.step(batch(0, 4, None), RATE).unwrap();
        });
    });
}

#[test]
fn weights_whose_store_panics_are_an_error_and_nothing_more() {
    within(180, "a store that panics", || {
        let mut pipeline = plain().build().unwrap();
        let before = super::weights(&mut pipeline);
        let broken = Pretrained::new(|| -> SafetensorsStore { panic!("no such bucket") });
        let error = pipeline.load_pretrained(&broken).unwrap_err().to_string();
        assert!(error.contains("no such bucket"), "{error}");
        assert!(super::weights(&mut pipeline) == before);
        pipeline.step(batch(0, 4, None), RATE).unwrap();
    });
}

#[test]
fn a_loader_between_two_steps_of_one_process_is_waited_for() {
    within(180, "a slow loader", || {
        each(plain, |rank, pipeline| {
            pipeline.step(batch(0, 4, None), RATE).unwrap();
            if rank == 1 {
                std::thread::sleep(SLOW);
            }
            pipeline.step(batch(1, 4, None), RATE).unwrap();
            // Also after a call that the processes refused.
            assert!(pipeline.step(batch(2, 4, None), if rank == 1 { 2.0 * RATE } else { RATE }).is_err());
            if rank == 1 {
                std::thread::sleep(SLOW);
            }
            pipeline.step(batch(2, 4, None), RATE).unwrap();
        });
    });
}

#[test]
fn a_module_whose_replacement_is_made_slowly_is_waited_for() {
    within(180, "a slow replacement", || {
        let replace = |pipeline: &mut Pipeline| {
            let change = |module: super::Layer, _: &StageContext| {
                std::thread::sleep(SLOW);
                module
            };
            pipeline.replace_module(1, change).unwrap();
            pipeline.step(batch(0, 4, None), RATE).unwrap();
        };
        replace(&mut plain().build().unwrap());
        each(plain, |_, pipeline| replace(pipeline));
    });
}
