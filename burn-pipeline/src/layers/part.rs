//! A stage of a model that is a list of layers: the module, and the stage with its loss.

use super::carried::Carried;
use super::chain::Links;
use super::wiring::Wiring;
use crate::payload::{Boundary, BoundaryError, Payload, PayloadReader};
use crate::stage::{Loss, LossFunction, PayloadCheck, Stage, StageBox, StageFunction, check, without_rule};
use crate::transparent::transparent;
use burn::module::ParamId;
use std::any::Any;
use std::panic::resume_unwind;
use std::sync::Arc;

/// Whatever crosses a boundary; the wiring says what it is.
pub(super) struct Crossing(Payload);

impl Boundary for Crossing {
    fn write(self, payload: &mut Payload) {
        *payload = Payload::from_parts(std::mem::take(payload).into_parts().chain(self.0.into_parts()));
    }

    fn read(payload: &mut PayloadReader) -> Result<Self, BoundaryError> {
        Ok(Self(payload.rest()))
    }
}

/// The layers that a stage holds.
#[derive(Clone, Debug)]
pub(super) struct Part<A> {
    chain: A,
    wiring: Arc<Wiring>,
}

transparent!([A: Links] Part<A> { chain });

impl<A: Links> Part<A> {
    fn run(&self, input: Payload, extra: Payload) -> Result<Payload, BoundaryError> {
        let mut carried = Carried::new(self.wiring.clone(), input, extra)?;
        if let Some(output) = self.chain.run(&mut carried)? {
            carried.finish(output);
        }
        carried.leave()
    }
}

impl<A: Links> Stage for Part<A> {
    type Input = Crossing;
    type Extra = Crossing;
    type Output = Crossing;

    fn extras(&self) -> Vec<&'static str> {
        self.wiring.extras.iter().flat_map(|extras| extras.names.clone()).collect()
    }

    fn forward(&self, input: Crossing, extra: Crossing) -> Crossing {
        // The pipeline compared types at the start and checked the batch, so this is not reached; the stage's caller
        // makes an error of it.
        Crossing(self.run(input.0, extra.0).unwrap_or_else(|error| resume_unwind(Box::new(error.to_string()))))
    }

    fn after_step(self, observed: &[Vec<f64>]) -> Self {
        if !self.chain.has_rule() {
            return without_rule(self);
        }
        Self { chain: self.chain.after_step(observed), wiring: self.wiring }
    }

    fn ruled(&self) -> Option<Vec<ParamId>> {
        Some(self.chain.ruled())
    }

    fn skip_capture(&self) -> Option<&'static str> {
        self.chain.skip_capture()
    }

    fn with_layer(self, layer: usize, change: &mut dyn FnMut(&mut dyn Any, usize)) -> Self {
        let mut before = layer.checked_sub(self.wiring.first);
        Self { chain: self.chain.with_layer(&mut before, change), wiring: self.wiring }
    }
}

/// A loss, and the check of its target.
pub(super) struct LossOf<O> {
    loss: LossFunction<O>,
    target: PayloadCheck,
}

impl<O> LossOf<O> {
    pub(super) fn new<T: Boundary, L: Into<Loss>>(loss: impl Fn(O, T) -> L + Send + Sync + 'static) -> Self {
        let loss = move |output, target| Ok(loss(output, T::from_payload(target)?).into());
        Self { loss: Arc::new(loss), target: Arc::new(check::<T>) }
    }
}

/// Makes the stage of some layers; the last stage has the loss.
pub(super) fn boxed<A: Links>(chain: A, wiring: Arc<Wiring>, loss: Option<&LossOf<A::Output>>) -> StageBox {
    let function = match loss {
        None => StageFunction::<Part<A>>::forward_only(),
        Some(LossOf { loss, target }) => {
            let loss = loss.clone();
            StageFunction::with_erased_loss(target.clone(), move |output: Crossing, target| {
                loss(A::Output::from_payload(output.0)?, target)
            })
        }
    };
    let (own, kinds) = (wiring.clone(), wiring.kinds.clone());
    let extra = move |payload| own.check_extras(payload);
    let function = function.described(Arc::new(check::<A::Input>), Arc::new(extra), kinds);
    StageBox::from_parts(Part { chain, wiring }, function)
}
