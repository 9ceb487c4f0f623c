//! Dropout masks as data: drawn, written down while they are drawn, or read back.
//!
//! The plain loop cannot draw what a pipeline draws, whose seed for each forward is its own affair. It reads the masks of
//! a GPipe run back instead. Every other way of running must then draw the same ones.
//!
//! A forward that draws from a seed is recorded as well, to learn what it draws. So masks are kept as tensors while they are
//! written, and those of a recording are left out when they are read back.

use burn::tensor::{Tensor, TensorData};
use pipeline_tests::device::device;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// What one layer does with its masks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Masks(Arc<Mutex<Tape>>);

#[derive(Debug, Default)]
enum Tape {
    #[default]
    Drawn,
    Written(Vec<Tensor<2>>),
    ReadBack(VecDeque<TensorData>),
}

impl Masks {
    /// The next mask.
    pub(crate) fn next(&self, draw: impl FnOnce() -> Tensor<2>) -> Tensor<2> {
        match &mut *self.0.lock().unwrap() {
            Tape::Drawn => draw(),
            Tape::Written(masks) => {
                let mask = draw();
                masks.push(mask.clone());
                mask
            }
            Tape::ReadBack(masks) => {
                let mask = masks.pop_front().unwrap();
                Tensor::from_data(mask, &device().autodiff())
            }
        }
    }

    /// Writes masks down from now on.
    pub(crate) fn write(&self) {
        *self.0.lock().unwrap() = Tape::Written(Vec::new());
    }

    /// Draws from now on.
    pub(crate) fn draw(&self) {
        *self.0.lock().unwrap() = Tape::Drawn;
    }

    /// Reads what was written back from now on.
    pub(crate) fn read_back(&self) {
        let mut tape = self.0.lock().unwrap();
        if let Tape::Written(masks) = std::mem::take(&mut *tape) {
            let computed = masks.into_iter().filter(|mask| mask.device().inner() == device());
            *tape = Tape::ReadBack(computed.map(|mask| mask.inner().into_data()).collect());
        }
    }
}
