//! Initial weights depend on their seed alone, whatever other threads draw. The threads that draw would also
//! disturb other tests in the process.

use crate::heap::turn;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Tensor};
use burn_pipeline::stage::init_seeded;
use pipeline_tests::reference::weights;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

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

/// Tensors that Burn's visitors skip: one that is drawn separately, and a copy of a weight.
#[derive(Module, Debug)]
struct Plain {
    mask: Tensor<2>,
    linear: Linear,
    start: Tensor<2>,
}

#[test]
fn tensors_in_plain_fields_are_drawn_from_the_seed_though_other_threads_draw_too() {
    let _turn = turn();
    let device = Device::flex();
    let layer = |seed| {
        let layer = init_seeded(seed, &device, |device| {
            let mask = Tensor::random([8, 8], Distribution::Bernoulli(0.5), device);
            let linear = LinearConfig::new(8, 8).init(device);
            Plain { mask, start: linear.weight.val(), linear }
        });
        let read = |tensor: &Tensor<2>| tensor.to_data().iter::<f32>().collect::<Vec<f32>>();
        assert_eq!(read(&layer.start), read(&layer.linear.weight.val()));
        (read(&layer.mask), weights(&layer))
    };
    let (first, second) = (layer(1), layer(2));
    assert_ne!(first.0, second.0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Pauses now and then: a generator that is always in use cannot be locked.
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = Tensor::<1>::random([16], Distribution::Default, &Device::flex());
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        for _ in 0..200 {
            assert_eq!((layer(1), layer(2)), (first.clone(), second.clone()));
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_layer_made_of_seeded_layers_does_not_wait_for_itself() {
    let _turn = turn();
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || {
        let device = Device::flex();
        let inner = |device: &Device| init_seeded(2, device, |device| LinearConfig::new(4, 4).init(device));
        let outer = || init_seeded(1, &device, |device| vec![inner(device), LinearConfig::new(4, 4).init(device)]);
        done.send((weights(&outer()), weights(&outer()), weights(&inner(&device))))
    });
    let (first, second, inner) = wait.recv_timeout(Duration::from_secs(60)).expect("deadlock");
    assert_eq!(first, second);
    assert_eq!(first[..inner.len()], inner);
}
