//! Burn's autodiff under threads, as ranks of one process use it: concurrent backwards never lose a gradient (Burn
//! issue 5573), and a backward within a backward does not deadlock (Burn issue 5193).

use crate::cases::noise;
use crate::hooked::{Hook, hooked};
use crate::watchdog::within;
use burn::tensor::{Device, Tensor};
use std::sync::{Arc, Barrier, Mutex};

const THREADS: usize = 4;
const ROUNDS: usize = 400;
const WATCHDOG: u64 = 120;
const SIDE: usize = 6;
const DEPTH: usize = 12;

fn square(seed: u64) -> Tensor<2> {
    let device = Device::flex().autodiff();
    Tensor::<1>::from_floats(&*noise(seed, SIDE * SIDE), &device).reshape([SIDE, SIDE])
}

/// A chain of layers, each with its own weight; the loss depends on all of them.
fn loss(x: Tensor<2>, weights: &[Tensor<2>]) -> Tensor<1> {
    weights.iter().fold(x, |x, w| (x.clone().matmul(w.clone()) * 0.3).tanh() + x).square().mean()
}

/// The gradient of every weight. Fails if one is missing.
fn gradients(x: Tensor<2>, weights: &[Tensor<2>]) -> Vec<Vec<f32>> {
    let gradients = loss(x, weights).backward();
    let read = |w: &Tensor<2>| w.grad(&gradients).expect("a gradient is lost").into_data().iter::<f32>().collect();
    weights.iter().map(read).collect()
}

fn weights(first: u64) -> Vec<Tensor<2>> {
    (0..DEPTH as u64).map(|layer| square(first + layer).require_grad()).collect()
}

/// Runs `body(thread)` on all threads at once, each `ROUNDS` times.
fn at_once(body: impl Fn(usize) + Send + Sync) {
    let start = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (body, start) = (&body, &start);
            scope.spawn(move || {
                start.wait();
                (0..ROUNDS).for_each(|_| body(thread));
            });
        }
    });
}

#[test]
fn backwards_of_independent_graphs_at_once_lose_no_gradient() {
    within(WATCHDOG, "backwards of independent graphs", || {
        let expected: Vec<_> =
            (0..THREADS as u64).map(|thread| gradients(square(900 + thread), &weights(100 * thread))).collect();
        at_once(|thread| {
            let seed = thread as u64;
            assert_eq!(gradients(square(900 + seed), &weights(100 * seed)), expected[thread]);
        });
    });
}

#[test]
fn backwards_of_graphs_that_share_parameters_at_once_lose_no_gradient() {
    within(WATCHDOG, "backwards of graphs that share parameters", || {
        let shared = weights(1);
        let expected: Vec<_> = (0..THREADS as u64).map(|thread| gradients(square(900 + thread), &shared)).collect();
        at_once(|thread| assert_eq!(gradients(square(900 + thread as u64), &shared), expected[thread]));
    });
}

#[test]
fn a_graph_built_on_one_thread_while_others_run_backwards_keeps_its_steps() {
    within(WATCHDOG, "graphs handed between threads", || {
        let shared = weights(1);
        let expected: Vec<_> = (0..THREADS as u64).map(|thread| gradients(square(900 + thread), &shared)).collect();
        let held: Mutex<Vec<(usize, Tensor<1>)>> = Mutex::new(Vec::new());
        at_once(|thread| {
            let built = loss(square(900 + thread as u64), &shared);
            let mut waiting = held.lock().unwrap();
            waiting.push((thread, built));
            // Runs the oldest, which another thread may have built, once enough are waiting.
            let due = (waiting.len() > THREADS).then(|| waiting.remove(0));
            drop(waiting);
            if let Some((builder, loss)) = due {
                let gradients = loss.backward();
                for (w, expected) in shared.iter().zip(&expected[builder]) {
                    let got: Vec<f32> = w.grad(&gradients).expect("a gradient is lost").into_data().iter().collect();
                    assert_eq!(&got, expected);
                }
            }
        });
    });
}

#[test]
fn a_backward_within_a_backward_does_not_lock() {
    within(WATCHDOG, "a backward within a backward", || {
        let shared = Arc::new(weights(1));
        let expected = gradients(square(900), &shared);
        let inner = Arc::new(Mutex::new(0));
        at_once(|_| {
            let own = weights(500);
            let (outer, count, nested) = (square(901), inner.clone(), shared.clone());
            let inner_expected = expected.clone();
            let hook = Hook::new(move || {
                assert_eq!(gradients(square(900), &nested), inner_expected);
                *count.lock().unwrap() += 1;
            });
            let middle = hooked(own[0].clone() * outer, hook);
            let gradients = loss(middle, &own[1..]).backward();
            assert!(own.iter().all(|w| w.grad(&gradients).is_some()), "a gradient of the outer backward is lost");
        });
        assert_eq!(*inner.lock().unwrap(), THREADS * ROUNDS);
    });
}
