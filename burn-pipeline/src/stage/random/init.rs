//! Initial weights that depend only on a seed and a layer, not on which rank makes them or on what other threads
//! draw.
//!
//! Burn draws initial values from one generator for each kind of device, shared by all threads of a process. Here:
//!
//! 1. The layer is made on Burn's capture device, which computes nothing: it records the operations that compute the
//!    layer's parameters, including draws.
//! 2. These operations run on the layer's own device, with draws from the layer's own generator on the host. The
//!    numbers are those that Burn's Flex backend draws from the seed.
//! 3. The layer is made once more, on its device, and gets these values.
//!
//! A tensor that a layer holds in a plain field cannot be given a value. If one is drawn, the device's generator is
//! seeded, the layer is made, and the next numbers of the generator are compared with those that follow the layer's
//! own draws. If they are equal, nobody else drew ([`RngProbe`]). Otherwise the layer is made again.
//!
//! A layer that cannot be made on the capture device (because it reads a value while it is made), or whose plain
//! fields are drawn on a device with an unknown generator, is made until several results in a row agree to the last
//! bit, and so do the numbers that follow. The generator can be neither locked nor read, so the result is very likely
//! right, but not certain.

use super::drawn::{drawn_apart, open_another_capture};
use super::following::RngProbe;
use crate::payload::AnyTensor;
use crate::scoped::scoped;
use crate::stage::state::{Names, named_weights, values, with_weights};
use burn::module::Module;
use burn::tensor::{Device, TensorData};
use parking_lot::{Mutex, ReentrantMutex, ReentrantMutexGuard};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long a thread may keep its turn while others wait.
const TURN: Duration = Duration::from_secs(120);

static DRAWING: Turns = Turns::new();

type Turn = ReentrantMutexGuard<'static, ()>;

/// The turns of threads that seed a device's generator and draw from it, or record on the device for it.
///
/// A thread that keeps its turn because the code that it runs hangs holds no other up for good: after a while the
/// others take turns among themselves, on another lock and another recording device.
struct Turns {
    /// Reentrant: a forward may make layers, and a layer may be made of others. A lock that is given up is never
    /// dropped.
    lock: Mutex<Option<&'static ReentrantMutex<()>>>,
    /// The number of turns so far.
    taken: AtomicU64,
}

impl Turns {
    const fn new() -> Self {
        Self { lock: Mutex::new(None), taken: AtomicU64::new(0) }
    }

    fn current(&self) -> &'static ReentrantMutex<()> {
        self.lock.lock().get_or_insert_with(|| Box::leak(Box::default()))
    }

    /// Takes a turn, which ends when the result is dropped. Nobody waits for a thread that keeps its turn for longer
    /// than `longest`.
    fn take(&self, longest: Duration) -> Turn {
        loop {
            let (lock, taken) = (self.current(), self.taken.load(Ordering::Relaxed));
            if let Some(turn) = lock.try_lock_for(longest) {
                // The lock may have been given up meanwhile, and its thread ended after all.
                if !std::ptr::eq(self.current(), lock) {
                    continue;
                }
                self.taken.fetch_add(1, Ordering::Relaxed);
                return turn;
            }
            if self.taken.load(Ordering::Relaxed) == taken {
                self.give_up(lock, longest);
            }
        }
    }

    /// Leaves a lock to the thread that keeps it, unless another thread has done so.
    fn give_up(&self, lock: &'static ReentrantMutex<()>, longest: Duration) {
        let mut current = self.lock.lock();
        if current.take_if(|current| std::ptr::eq(*current, lock)).is_some() {
            open_another_capture();
            let seconds = longest.as_secs_f64();
            tracing::warn!(
                seconds,
                "a forward or a layer that draws random numbers hangs; others no longer wait for it"
            );
        }
    }
}

thread_local! {
    /// True while this thread makes a module from a seed.
    static SEEDING: RefCell<bool> = const { RefCell::new(false) };
}

/// Attempts after which a layer counts as not made from its seed alone.
const ATTEMPTS: usize = 64;

/// Attempts in a row that must agree.
const AGREEING: usize = 4;

/// A turn to seed the device's generator and draw from it.
pub(in crate::stage) fn device_generator() -> Turn {
    DRAWING.take(TURN)
}

/// Returns true while this thread makes a module from a seed: more than once, and in turns with other threads. What
/// waits for another rank there would wait for the thread that waits for its turn.
pub(crate) fn is_seeding() -> bool {
    SEEDING.with_borrow(|seeding| *seeding)
}

/// Makes a module with values drawn only from `seed`. Give every layer its own seed.
///
/// Values are drawn before this returns (Burn would otherwise wait for their first use), on the host and by the
/// layer's own generator. So draws of other threads play no part, and every device gets the same numbers. For this,
/// `make` runs twice, once on a device that only records. If plain fields of the module hold drawn tensors, it runs
/// until its draws are proved undisturbed. A `make` that reads values, ignores the device that it is given, or calls
/// this function itself runs until four results from the device's generator agree; if they never do, the last one is
/// returned and a warning is traced. Calls from several threads take turns, so `make` cannot wait for other ranks:
/// make whole layers, and cut them for tensor-parallel groups (`nn`) afterwards.
///
/// # Panics
/// Panics if `make` cuts a layer or exchanges anything else with other ranks. In a stage's factory this is an error of
/// [`Builder::build`](crate::train::Builder::build).
pub fn init_seeded<M: Module>(seed: u64, device: &Device, make: impl Fn(&Device) -> M) -> M {
    let _turn = device_generator();
    scoped(&SEEDING, true, || made(seed, device, make)).0
}

/// Makes the module, with this thread marked and its turn come.
fn made<M: Module>(seed: u64, device: &Device, make: impl Fn(&Device) -> M) -> M {
    let Some(drawn) = drawn_apart(seed, device, &make) else { return drawn_together(seed, device, make, None) };
    let module = match drawn.elsewhere {
        None => {
            device.seed(seed);
            make(device)
        }
        Some(elsewhere) => drawn_together(seed, device, &make, RngProbe::after(device, seed, &elsewhere)),
    };
    let weights = named_weights(&module, &Names::default());
    let spec = |value: &AnyTensor| (value.shape(), value.dtype());
    let alike = |(weight, value): (&AnyTensor, &AnyTensor)| spec(weight) == spec(value);
    if weights.len() != drawn.values.len() || !weights.iter().map(|w| &w.value).zip(&drawn.values).all(alike) {
        return drawn_together(seed, device, make, None);
    }
    let ids = weights.into_iter().map(|weight| weight.id);
    with_weights(module, &ids.zip(drawn.values).collect())
}

/// Makes the module with the device's generator until nobody else drew: until the numbers that follow are the
/// expected ones, or until several results agree.
fn drawn_together<M: Module>(seed: u64, device: &Device, make: impl Fn(&Device) -> M, expected: Option<RngProbe>) -> M {
    let draw = || {
        device.seed(seed);
        let module = make(device);
        let read = |(_, value): (_, AnyTensor)| value.inner().to_data().ok();
        let drawn: Vec<Option<TensorData>> = values(&module).into_iter().map(read).collect();
        let next = RngProbe::next(device).ok();
        (module, (drawn, next))
    };
    let (mut module, mut drawn) = draw();
    let mut agreeing = 1;
    for attempt in 0..ATTEMPTS {
        if agreeing == AGREEING || expected.is_some() && drawn.1 == expected {
            return module;
        }
        // A thread that draws in step with one attempt falls out of step with the next.
        std::thread::sleep(Duration::from_micros(17 * (attempt as u64 % 7)));
        let (again, same) = draw();
        agreeing = if drawn == same { agreeing + 1 } else { 1 };
        (module, drawn) = (again, same);
    }
    tracing::warn!(seed, module = std::any::type_name::<M>(), "initial values are not drawn from the seed alone");
    module
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Instant;

    #[test]
    fn a_thread_that_keeps_its_turn_holds_no_other_up_for_good() {
        let turns = Turns::new();
        let (begun, began) = channel();
        let (end, ends) = channel::<()>();
        std::thread::scope(|scope| {
            let kept = &turns;
            scope.spawn(move || {
                let turn = kept.take(TURN);
                begun.send(()).unwrap();
                ends.recv().unwrap();
                // It may go on as it began.
                drop(kept.take(TURN));
                drop(turn);
            });
            began.recv().unwrap();
            drop(turns.take(Duration::from_millis(50)));
            // Others do not wait once more, and take turns among themselves.
            let since = Instant::now();
            let turn = turns.take(TURN);
            assert!(since.elapsed() < TURN / 2);
            let other = scope.spawn(|| drop(turns.take(TURN)));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!other.is_finished());
            drop(turn);
            other.join().unwrap();
            end.send(()).unwrap();
        });
    }

    #[test]
    fn a_thread_that_waits_while_others_take_turns_waits_on() {
        let turns = Turns::new();
        let lock = std::ptr::from_ref(turns.current());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..2 {
                        let _turn = turns.take(Duration::from_millis(500));
                        std::thread::sleep(Duration::from_millis(100));
                    }
                });
            }
        });
        assert!(std::ptr::eq(turns.current(), lock), "no turn was given up");
    }
}
