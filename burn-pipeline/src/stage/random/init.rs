//! Initial weights that depend on a seed and a layer, not on which rank makes them or on what other threads draw.
//!
//! Burn draws initial values from one generator for each kind of device, which every thread of a process draws from. Here:
//!
//! 1. The layer is made on Burn's capture device, which computes nothing: what its parameters are computed of becomes a list
//!    of operations, draws among them.
//! 2. The list is run on the layer's own device, its draws from a generator of the layer's own, on the host. They are the
//!    numbers that Burn's Flex backend draws from the seed.
//! 3. The layer is made once more, on its device, and gets these values.
//!
//! A tensor that a layer holds in a plain field cannot be given a value. Where one is drawn, the device's generator is seeded,
//! the layer is made, and the next numbers of the generator are compared with those that follow the layer's own draws: if they
//! are equal, nobody else drew ([`Following`]). Else it is made again.
//!
//! A layer that cannot be made on the capture device (it reads a value while it is made, say), or whose plain fields are drawn on
//! a device whose generator is not known, is made until several in a row agree to the last bit, and so do the numbers that
//! follow. The generator can be neither locked nor read, so that is very likely right, and not sure.

use super::drawn::drawn_apart;
use super::following::Following;
use crate::stage::boundary::AnyTensor;
use crate::stage::state::{Names, named_weights, values, with_weights};
use burn::module::Module;
use burn::tensor::{Device, TensorData};
use parking_lot::{ReentrantMutex, ReentrantMutexGuard};
use std::time::Duration;

static DRAWING: ReentrantMutex<()> = ReentrantMutex::new(());

/// Draws before a layer counts as one that is not made from its seed alone.
const ATTEMPTS: usize = 64;

/// Draws in a row that must agree.
const AGREEING: usize = 4;

/// The lock that a thread holds while it seeds the device's generator and draws from it. A thread that holds it gets it again: a
/// forward may make layers, and a layer may be made of others.
pub(in crate::stage) fn device_generator() -> ReentrantMutexGuard<'static, ()> {
    DRAWING.lock()
}

/// Makes a module, its values drawn from `seed` alone. Give every layer its own seed.
///
/// Values are drawn before this returns (Burn would otherwise wait for their first use), on the host and by a generator of
/// the layer's own: what other threads draw plays no part, and every device gets the same numbers. For that `make` runs
/// twice, once on a device that only records. It runs until what it draws is proved undisturbed where drawn tensors stand in plain
/// fields of the module. A `make` that reads values, ignores the device that it is given, or calls this function itself, runs
/// until four draws from the device's generator agree; where they never do, the last one is returned and a warning is traced.
/// Calls from several threads take turns.
pub fn init_seeded<M: Module>(seed: u64, device: &Device, make: impl Fn(&Device) -> M) -> M {
    let _turn = device_generator();
    let Some(drawn) = drawn_apart(seed, device, &make) else { return drawn_together(seed, device, make, None) };
    let module = match drawn.elsewhere {
        None => {
            device.seed(seed);
            make(device)
        }
        Some(elsewhere) => drawn_together(seed, device, &make, Following::after(device, seed, &elsewhere)),
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

/// Draws from the device's generator until nobody else did: until the numbers that follow are the expected ones, or until several
/// draws agree.
fn drawn_together<M: Module>(
    seed: u64,
    device: &Device,
    make: impl Fn(&Device) -> M,
    expected: Option<Following>,
) -> M {
    let draw = || {
        device.seed(seed);
        let module = make(device);
        let read = |(_, value): (_, AnyTensor)| value.inner().to_data().ok();
        let drawn: Vec<Option<TensorData>> = values(&module).into_iter().map(read).collect();
        let next = Following::next(device).ok();
        (module, (drawn, next))
    };
    let (mut module, mut drawn) = draw();
    let mut agreeing = 1;
    for attempt in 0..ATTEMPTS {
        if agreeing == AGREEING || expected.is_some() && drawn.1 == expected {
            return module;
        }
        // Whoever draws in step with one draw falls out of step with the next.
        std::thread::sleep(Duration::from_micros(17 * (attempt as u64 % 7)));
        let (again, same) = draw();
        agreeing = if drawn == same { agreeing + 1 } else { 1 };
        (module, drawn) = (again, same);
    }
    tracing::warn!(seed, module = std::any::type_name::<M>(), "initial values are not drawn from the seed alone");
    module
}
