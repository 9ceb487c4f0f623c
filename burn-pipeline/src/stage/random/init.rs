//! Initial weights that depend on a seed and a layer, not on which rank makes them.
//!
//! Burn draws initial values from one generator for each device. Ranks on threads of one process draw from it in an
//! undefined order, so the same seed would give different weights on every run and cut. Here:
//!
//! 1. One layer at a time seeds the generator and draws, on whatever rank.
//! 2. Code elsewhere (a data loader, a dropout) may draw from the same generator meanwhile. So a layer is drawn
//!    again until two draws agree to the last bit. The generator can be neither locked nor read, so a thread that draws
//!    constantly and in step with both draws cannot be excluded.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use std::sync::{Mutex, MutexGuard, PoisonError};

static DRAWING: Mutex<()> = Mutex::new(());

/// ForwardSeed before a layer counts as one that is not made from its seed alone.
const ATTEMPTS: usize = 64;

/// The lock that a thread holds while it seeds the generator and draws from it.
pub(super) fn generator() -> MutexGuard<'static, ()> {
    DRAWING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a module, its values drawn from `seed` alone. Give every layer its own seed.
///
/// Values are drawn before this returns (Burn would otherwise wait for their first use), at least twice. Calls
/// from several threads take turns; `make` must not call this function again. Where draws never agree, because
/// `make` uses another source of chance, the last one is returned and a warning is traced.
pub fn init_seeded<M: Module>(seed: u64, device: &Device, make: impl Fn(&Device) -> M) -> M {
    let _turn = generator();
    let draw = || {
        device.seed(seed);
        let module = make(device);
        let mut values = Values(Vec::new());
        module.visit(&mut values);
        (module, values.0)
    };
    let (mut module, mut values) = draw();
    for _ in 0..ATTEMPTS {
        let (again, same) = draw();
        if values == same {
            return module;
        }
        (module, values) = (again, same);
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
