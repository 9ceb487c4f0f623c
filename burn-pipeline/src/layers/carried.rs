//! The values of one forward that go past layers: extras of the batch, and skips.

use super::context::ForwardContext;
use super::wiring::Wiring;
use crate::panics::located;
use crate::payload::{Boundary, BoundaryError, Payload, PayloadReader};
use crate::stage::microbatch;
use std::any::TypeId;
use std::collections::HashMap;
use std::sync::Arc;

/// The values of one forward that go past layers.
#[derive(Debug)]
pub struct Carried {
    wiring: Arc<Wiring>,
    /// The stage's input, until its first layer reads it.
    input: Option<PayloadReader>,
    /// The output of the stage's last layer.
    output: Option<Payload>,
    extras: Vec<Payload>,
    /// Values along edges that end at this stage, in the edges' order.
    edges: Vec<Payload>,
    /// Values that were given and not yet taken; a layer takes the last one.
    values: HashMap<&'static str, Vec<Payload>>,
    /// The layer that runs.
    layer: usize,
}

impl Carried {
    /// Cuts the stage's extras, and its edges' values from its input.
    pub(super) fn new(wiring: Arc<Wiring>, input: Payload, extra: Payload) -> Result<Self, BoundaryError> {
        let mut extra = PayloadReader::new(extra);
        let extras = wiring.extras.iter().map(|extras| (extras.part)(&mut extra)).collect::<Result<_, _>>()?;
        let (input, edges) = input.split_skips();
        let (input, layer) = (Some(PayloadReader::new(input)), wiring.first);
        Ok(Self { wiring, input, output: None, extras, edges, values: HashMap::new(), layer })
    }

    /// Reads the first layer's input, and the values that came with it.
    pub(super) fn enter<I: Boundary>(&mut self) -> Result<I, BoundaryError> {
        // A stage's layers are consecutive.
        let none = BoundaryError::Structure { expected: "consecutive layers" };
        let mut input = self.input.take().ok_or(none)?;
        let value = I::read(&mut input)?;
        let wiring = self.wiring.clone();
        let mut edges = std::mem::take(&mut self.edges).into_iter().map(PayloadReader::new);
        let mut arrived = Vec::new();
        for (sender, ports) in &wiring.coming {
            let mut edge = if *sender + 1 < wiring.stage { edges.next() } else { None };
            let reader = edge.as_mut().unwrap_or(&mut input);
            for (number, port) in ports {
                arrived.push((*number, port.key, (port.part)(reader)?));
            }
        }
        // The last one that was given is taken first.
        arrived.sort_by_key(|(number, ..)| *number);
        arrived.into_iter().for_each(|(_, key, value)| self.give(key, value));
        Ok(value)
    }

    /// Runs the next of the stage's layers. The text of a panic begins with the layer's number and name.
    pub(super) fn in_layer<T>(&mut self, name: &str, run: impl FnOnce(&mut Self) -> T) -> T {
        let layer = self.layer;
        let given = located(|| format!("layer {layer} (`{name}`)"), || run(self));
        self.layer += 1;
        given
    }

    pub(super) fn context(&self) -> ForwardContext {
        let Wiring { stage, stages, .. } = *self.wiring;
        ForwardContext { layer: self.layer, stage, stages, microbatch: microbatch() }
    }

    /// The extras that a layer reads.
    pub(super) fn extras(&self, names: &[&'static str], of: TypeId) -> Payload {
        let place = self.wiring.extras.iter().position(|extras| extras.is(names, of));
        place.map(|place| self.extras[place].clone()).unwrap_or_default()
    }

    /// Keeps a value for a later layer.
    pub(super) fn give(&mut self, key: &'static str, value: Payload) {
        self.values.entry(key).or_default().push(value);
    }

    /// The last value that was given and not yet taken.
    pub(super) fn take(&mut self, key: &'static str) -> Result<Payload, BoundaryError> {
        let value = self.values.get_mut(key).and_then(Vec::pop);
        value.ok_or(BoundaryError::Missing { expected: "a value from an earlier layer" })
    }

    /// Keeps the output of the stage's last layer.
    pub(super) fn finish(&mut self, output: impl Boundary) {
        self.output = Some(output.into_payload());
    }

    /// What leaves the stage: its output, then the values for later stages.
    pub(super) fn leave(mut self) -> Result<Payload, BoundaryError> {
        let mut output = self.output.take().ok_or(BoundaryError::Missing { expected: "a layer" })?;
        let wiring = self.wiring.clone();
        let mut edges = Vec::new();
        for (receiver, ports) in &wiring.going {
            let values = ports.iter().filter_map(|(number, port)| self.left(*number, port.key));
            let parts: Vec<_> = values.flat_map(Payload::into_parts).collect();
            match *receiver == wiring.stage + 1 {
                true => output = Payload::from_parts(output.into_parts().chain(parts)),
                false => edges.push(Payload::from_parts(parts)),
            }
        }
        Ok(output.join_skips(edges))
    }

    /// The value of this number, which no layer of the stage took. All values that are left go to later stages, so the
    /// ones of its key are in the order of their numbers.
    fn left(&mut self, number: usize, key: &str) -> Option<Payload> {
        let all = self.wiring.going.iter().flat_map(|(_, ports)| ports);
        let place = all.filter(|(other, port)| port.key == key && *other < number).count();
        self.values.get_mut(key)?.get_mut(place).map(std::mem::take)
    }
}
