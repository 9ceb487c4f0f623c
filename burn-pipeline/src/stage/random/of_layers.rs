//! Draws of layers that several ranks hold together ([`GroupDropout`](crate::nn::GroupDropout)): where their numbers come from, and which
//! they were.
//!
//! Guarantees: while a forward runs eagerly, its thread's layers draw from the forward's own generator, on the host, in the order of the
//! forward; the numbers are those that a captured forward, or one device, draws from the seed.
//!
//! 1. The engine opens a scope on its thread ([`drawing`]). Ranks of a group wait for each other inside of their forwards, so they cannot take
//!    turns at the device's generator as other eager forwards do (`engine::seeded`).
//! 2. A layer asks for numbers ([`random`]). Outside a scope, and where the scope has no generator (a recording), the device draws them.
//! 3. The scope notes all draws. A recording that holds others too was drawn from past the layers.

use super::following::Drawn;
use crate::program::drawn_as;
use burn::tensor::{DType, Device, Distribution, Shape, Tensor};
use rand::rngs::StdRng;
use std::cell::RefCell;

/// What the layers of a thread draw from, and what they drew.
#[derive(Default)]
struct Scope {
    generator: Option<StdRng>,
    drawn: Drawn,
}

thread_local! {
    static OPEN: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

/// Runs it with layers that draw from this generator (the device's, if there is none), and returns what they drew.
pub(in crate::stage) fn drawing<T>(generator: Option<StdRng>, run: impl FnOnce() -> T) -> (T, Drawn) {
    struct Reopen(Option<Scope>);

    impl Drop for Reopen {
        fn drop(&mut self) {
            OPEN.replace(self.0.take());
        }
    }

    let _outer = Reopen(OPEN.replace(Some(Scope { generator, drawn: Drawn::new() })));
    let given = run();
    let drawn = OPEN.with_borrow_mut(|open| open.as_mut().map(|scope| std::mem::take(&mut scope.drawn)));
    (given, drawn.unwrap_or_default())
}

/// Random numbers for a layer that several ranks hold together: the same on all of them, if all draw alike.
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
