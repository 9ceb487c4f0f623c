//! Initial weights come from their seed alone, whatever else draws meanwhile. The threads that draw would disturb other
//! tests in the process too.

use crate::heap::turn;
use burn::nn::LinearConfig;
use burn::tensor::{Device, Distribution, Tensor};
use burn_pipeline::stage::init_seeded;
use pipeline_tests::reference::weights;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn a_layer_is_drawn_from_its_seed_though_other_threads_draw_too() {
    let _turn = turn();
    let device = Device::flex();
    let layer = |seed| weights(&init_seeded(seed, &device, |device| LinearConfig::new(64, 64).init(device)));
    let (first, second) = (layer(1), layer(2));
    assert_ne!(first, second);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = Tensor::<1>::random([16], Distribution::Default, &Device::flex());
            }
        });
        for _ in 0..100 {
            assert_eq!((layer(1), layer(2)), (first.clone(), second.clone()));
        }
        done.store(true, Ordering::Relaxed);
    });
}
