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
//! A layer that cannot be made on the capture device (it reads a value while it is made, say) draws from the device's
//! generator until several draws in a row agree to the last bit. The generator can be neither locked nor read, so that is very
//! likely right, and not sure.

use super::drawn::drawn_apart;
use crate::stage::boundary::AnyTensor;
use crate::stage::state::{Names, named_weights, with_weights};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

static DRAWING: Mutex<()> = Mutex::new(());

/// Draws before a layer counts as one that is not made from its seed alone.
const ATTEMPTS: usize = 64;

/// Draws in a row that must agree.
const AGREEING: usize = 4;

/// The lock that a thread holds while it seeds the device's generator and draws from it.
pub(in crate::stage) fn device_generator() -> MutexGuard<'static, ()> {
    DRAWING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a module, its values drawn from `seed` alone. Give every layer its own seed.
///
/// Values are drawn before this returns (Burn would otherwise wait for their first use), on the host and by a generator of
/// the layer's own: what other threads draw plays no part, and every device gets the same numbers. For that `make` runs
/// twice, once on a device that only records. A `make` that reads values, or ignores the device that it is given, runs
/// until four draws from the device's generator agree; where they never do, the last one is returned and a warning is traced.
/// Calls from several threads take turns; `make` must not call this function again.
pub fn init_seeded<M: Module>(seed: u64, device: &Device, make: impl Fn(&Device) -> M) -> M {
    let _turn = device_generator();
    if let Some(values) = drawn_apart(seed, device, &make) {
        device.seed(seed);
        let module = make(device);
        let weights = named_weights(&module, &Names::default());
        let spec = |value: &AnyTensor| (value.shape(), value.dtype());
        let alike = |(weight, value): (&AnyTensor, &AnyTensor)| spec(weight) == spec(value);
        if weights.len() == values.len() && weights.iter().map(|weight| &weight.value).zip(&values).all(alike) {
            let ids = weights.into_iter().map(|weight| weight.id);
            return with_weights(module, &ids.zip(values).collect());
        }
    }
    drawn_together(seed, device, make)
}

/// Draws from the device's generator until draws agree.
fn drawn_together<M: Module>(seed: u64, device: &Device, make: impl Fn(&Device) -> M) -> M {
    let draw = || {
        device.seed(seed);
        let module = make(device);
        let mut values = Values(Vec::new());
        module.visit(&mut values);
        (module, values.0)
    };
    let (mut module, mut values) = draw();
    let mut agreeing = 1;
    for attempt in 0..ATTEMPTS {
        // Whoever draws in step with one draw falls out of step with the next.
        std::thread::sleep(Duration::from_micros(17 * (attempt as u64 % 7)));
        let (again, same) = draw();
        agreeing = if values == same { agreeing + 1 } else { 1 };
        (module, values) = (again, same);
        if agreeing == AGREEING {
            return module;
        }
    }
    tracing::warn!(seed, module = std::any::type_name::<M>(), "initial values are not drawn from the seed alone");
    module
}

/// Reads all values, which makes Burn draw lazy ones.
struct Values(Vec<TensorData>);

impl ModuleVisitor for Values {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.push(param.val().into_data());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.0.push(param.val().into_data());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.0.push(param.val().into_data());
    }
}
