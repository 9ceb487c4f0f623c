//! Draws of tensor-parallel layers ([`GroupDropout`](crate::nn::GroupDropout)): where their numbers come from, and a
//! record of them.
//!
//! Guarantees: while a forward runs eagerly, its thread's layers draw from the forward's own generator, on the host,
//! in the order of the forward. The numbers are those that a captured forward, or one device, draws from the seed.
//!
//! 1. The engine opens a scope on its thread ([`drawing`]). The members of a group wait for each other inside their
//!    forwards, so they cannot take turns at the device's generator as other eager forwards do (`engine::seeded`).
//! 2. A layer requests numbers ([`random`]). Outside a scope, and if the scope has no generator (a recording), the
//!    device draws them.
//! 3. The scope remembers all draws. If a recording holds other draws too, something besides these layers drew.

use super::following::Drawn;
use crate::program::drawn_as;
use crate::scoped::scoped;
use burn::tensor::{DType, Device, Distribution, Shape, Tensor};
use rand::rngs::StdRng;
use std::cell::RefCell;

/// The generator of a thread's layers, and what they drew.
struct Scope {
    generator: Option<StdRng>,
    drawn: Drawn,
}

thread_local! {
    static OPEN: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

/// Runs a function whose layers draw from this generator (the device's, if there is none), and returns what they
/// drew.
pub(in crate::stage) fn drawing<T>(generator: Option<StdRng>, run: impl FnOnce() -> T) -> (T, Drawn) {
    let (given, scope) = scoped(&OPEN, Some(Scope { generator, drawn: Drawn::new() }), run);
    (given, scope.map(|scope| scope.drawn).unwrap_or_default())
}

/// Random numbers for a tensor-parallel layer: the same on all members, if all draw alike.
pub(crate) fn random<const D: usize>(shape: Shape, dtype: DType, from: Distribution, device: &Device) -> Tensor<D> {
    let drawn = OPEN.with_borrow_mut(|open| {
        let scope = open.as_mut()?;
        scope.drawn.push((shape.clone(), dtype, from));
        scope.generator.as_mut().map(|generator| drawn_as(shape.clone(), dtype, from, generator))
    });
    match drawn {
        Some(drawn) => Tensor::from_data(drawn, (device, dtype)),
        None => Tensor::random(shape, from, (device, dtype)),
    }
}
