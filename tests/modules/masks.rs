//! Dropout masks that can be drawn, recorded while they are drawn, or replayed.
//!
//! The plain loop cannot draw a pipeline's masks, because the pipeline derives a seed for each forward. So it
//! replays the masks of a GPipe run, and every other mode must draw the same ones.
//!
//! A forward with a seed is also recorded once, to learn what it draws. So masks are kept as tensors while they are
//! recorded, and those of that extra forward are skipped in a replay.

use burn::tensor::{Tensor, TensorData};
use pipeline_tests::device::device;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// The masks of one layer.
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

    /// Records masks from now on.
    pub(crate) fn write(&self) {
        *self.0.lock().unwrap() = Tape::Written(Vec::new());
    }

    /// Draws from now on.
    pub(crate) fn draw(&self) {
        *self.0.lock().unwrap() = Tape::Drawn;
    }

    /// Replays the recorded masks from now on.
    pub(crate) fn read_back(&self) {
        let mut tape = self.0.lock().unwrap();
        if let Tape::Written(masks) = std::mem::take(&mut *tape) {
            let computed = masks.into_iter().filter(|mask| mask.device().inner() == device());
            *tape = Tape::ReadBack(computed.map(|mask| mask.inner().into_data()).collect());
        }
    }
}
