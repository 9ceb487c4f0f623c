//! Values that go past the next stage (skip connections): how a stage sends and receives them.
//!
//! 1. A stage's [`Output`](crate::stage::Stage::Output) is what goes to the next stage, followed by one [`Skip`] for
//!    each edge that starts there, in the order of the stages that they lead to.
//! 2. Its [`Input`](crate::stage::Stage::Input) is what comes from the stage before (or the batch), followed by one
//!    [`Skip`] for each edge that ends there, in the order of the stages that they come from.
//! 3. `Builder::skip` declares the edges. [`Skips`] holds any number of values, for a module type whose stages have
//!    different numbers of edges.
//!
//! ```
//! use burn::tensor::Tensor;
//! use burn_pipeline::payload::{Boundary, Skip};
//! // The left half of a U-Net sends its feature map down, and across to the other side.
//! type Output = (Tensor<4>, Skip<Tensor<4>>);
//! # fn boundary<T: Boundary>() {}
//! # boundary::<Output>();
//! ```

use super::kinds::{ANY_EDGES, ONE_EDGE};
use super::parts::{EDGE, Payload, PayloadPart};
use super::payload_reader::{BoundaryError, PayloadReader};
use super::values::Boundary;

/// A value that goes past the next stage, to the stage at the other end of an edge.
///
/// In a stage's input or output, it comes after all parts that are not a `Skip`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Skip<T>(pub T);

/// One [`Skip`] for each edge that starts or ends at a stage, for module types whose stages have different numbers of
/// edges.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Skips<T>(pub Vec<T>);

impl<T: Boundary> Boundary for Skip<T> {
    fn write(self, payload: &mut Payload) {
        payload.push_tag(EDGE);
        self.0.write(payload);
    }

    fn read(payload: &mut PayloadReader) -> Result<Self, BoundaryError> {
        payload.edge()?;
        T::read(payload).map(Skip)
    }

    fn kinds() -> Vec<String> {
        [vec![ONE_EDGE.to_owned()], T::kinds()].concat()
    }
}

impl<T: Boundary> Boundary for Skips<T> {
    fn write(self, payload: &mut Payload) {
        self.0.into_iter().for_each(|value| Skip(value).write(payload));
    }

    fn read(payload: &mut PayloadReader) -> Result<Self, BoundaryError> {
        let mut values = Vec::new();
        while payload.is_at_edge() {
            values.push(Skip::read(payload)?.0);
        }
        Ok(Self(values))
    }

    fn kinds() -> Vec<String> {
        [vec![ANY_EDGES.to_owned()], T::kinds()].concat()
    }
}

impl Payload {
    /// The part for the next stage, and each value that goes past it, in order.
    pub(crate) fn split_skips(self) -> (Self, Vec<Self>) {
        let (mut next, mut skips) = (Self::default(), Vec::<Self>::new());
        for part in self.into_parts() {
            match part {
                PayloadPart::Tag(EDGE) => skips.push(Self::default()),
                part => skips.last_mut().unwrap_or(&mut next).0.push_back(part),
            }
        }
        (next, skips)
    }

    /// The reverse of [`Payload::split_skips`].
    pub(crate) fn join_skips(mut self, skips: Vec<Self>) -> Self {
        for skip in skips {
            self.push_tag(EDGE);
            self.append(skip);
        }
        self
    }
}
