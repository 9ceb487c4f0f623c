//! Initial weights that depend on a seed and a layer, not on which rank makes them.
//!
//! Burn draws initial values from one generator a device. Ranks on threads of one process would take turns at it
//! in an order that nobody fixed, so the same seed would give other weights on every run and cut. Here one layer
//! at a time seeds the generator and draws, whoever makes it.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Bool, Device, Int, Tensor};
use std::sync::{Mutex, PoisonError};

static DRAWING: Mutex<()> = Mutex::new(());

/// Makes a module, its values drawn from `seed` alone. Give every layer its own seed.
///
/// Values are drawn before this returns (Burn would otherwise wait for their first use). Calls from several
/// threads take turns; nothing else may draw random numbers on the same device kind meanwhile, since Burn has
/// one generator for all. `make` must not call this function again.
pub fn init_seeded<M: Module>(seed: u64, device: &Device, make: impl FnOnce(&Device) -> M) -> M {
    let _turn = DRAWING.lock().unwrap_or_else(PoisonError::into_inner);
    device.seed(seed);
    let module = make(device);
    module.visit(&mut Draw);
    module
}

/// Visiting a lazy parameter's value makes Burn draw it.
struct Draw;

impl ModuleVisitor for Draw {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let _ = param.val();
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let _ = param.val();
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        let _ = param.val();
    }
}
