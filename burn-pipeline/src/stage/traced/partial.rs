//! Backwards without the gradients of some outputs: those that nothing downstream used.
//!
//! Guarantees: nothing is computed for an output without a gradient, and what only it depends on has none: no zeros
//! reach an optimizer. A microbatch whose forward has run already goes on with the other programs.
//!
//! 1. Which gradients are absent is known when the first backward comes. The stage is then captured once more, without
//!    them, on zeros of the forms that the first capture was made for.
//! 2. Tensors are numbered in order of appearance, and a backward comes after the forward: so both captures name the
//!    forward's tensors alike, and an interpreter that ran the first one's forward can run the second one's backward.
//! 3. That is checked: both forwards must be the same operations on the same tensors. Where they are not (a forward
//!    that does not do the same twice), the absent gradients are zeros.

use super::Traced;
use super::flight::{Flight, Ready};
use super::parameters::Parameters;
use super::record::record;
use crate::stage::Stage;
use std::sync::Arc;

impl<M: Stage> Traced<M> {
    /// The programs without the gradients of the outputs at these places.
    pub(super) fn partial(&mut self, module: &M, flight: &Flight, absent: Vec<usize>) -> Option<Arc<Ready>> {
        let ready = &flight.ready;
        let key = (ready.signature.clone(), absent);
        if let Some(known) = self.partial.get(&key) {
            return known.clone();
        }
        let parameters = Parameters::of(module);
        let call = ready.signature.call(flight.device());
        let recorded = record(&mut self.capture, &self.function, module, &call, &parameters, &key.1);
        let found = recorded.ok().filter(|(programs, ..)| programs.continues(&ready.programs));
        let found = found.map(|(programs, ..)| {
            tracing::info!(absent = ?key.1, "stage captured without the gradients of outputs that nobody uses");
            let (form, parameters, constants) = (ready.form.clone(), ready.parameters.clone(), ready.constants.clone());
            Arc::new(Ready { programs: Arc::new(programs), form, parameters, constants, signature: key.0.clone() })
        });
        if found.is_none() {
            tracing::warn!(absent = ?key.1, "gradients of outputs that nobody uses are zeros: the stage was not captured alike");
        }
        self.partial.insert(key, found.clone());
        found
    }
}
