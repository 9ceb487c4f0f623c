//! A model whose stages fail at a given place.

use crate::hooked::{Hook, hooked};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Float, Int, Tensor};
use burn_pipeline::payload::AnyTensor;
use burn_pipeline::stage::{Batch, Stage, StageBox, init_seeded};
use burn_pipeline::train::StageContext;
use std::time::Duration;

pub(crate) const WIDTH: usize = 4;
/// Longer than any test waits.
pub(crate) const FOREVER: Duration = Duration::from_secs(600);

/// A kind of failure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum How {
    PanicInForward,
    PanicInBackward,
    /// Twice as wide as the next stage's input.
    WrongShape,
    WrongRank,
    WrongKind,
    /// No samples.
    EmptyOutput,
    NeverAnswer,
    LossPanics,
    /// One loss per sample and feature.
    LossOfManyNumbers,
    LossOfNoNumber,
}

/// A failure, and its place and time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) stage: usize,
    pub(crate) microbatch: usize,
    pub(crate) how: How,
}

/// A linear layer that fails at its microbatch. Batches have one sample per microbatch, numbered by `ids`.
#[derive(Module, Debug)]
pub(crate) struct Faulty {
    linear: Linear,
    #[module(skip)]
    fault: Option<Fault>,
}

fn number(ids: &Tensor<2, Int>) -> usize {
    ids.clone().into_data().iter::<i64>().next().unwrap() as usize
}

impl Stage for Faulty {
    type Input = (Tensor<2>, Tensor<2, Int>);
    type Extra = ();
    type Output = (AnyTensor, Tensor<2, Int>);

    fn forward(&self, (x, ids): Self::Input, (): ()) -> Self::Output {
        let y = self.linear.forward(x);
        let due = self.fault.filter(|fault| fault.microbatch == number(&ids));
        let y = match due.map(|fault| fault.how) {
            Some(How::PanicInForward) => panic!("a broken forward"),
            Some(How::PanicInBackward) => AnyTensor::new(hooked(y, Hook::new(|| panic!("a broken backward")))),
            Some(How::WrongShape) => AnyTensor::new(Tensor::cat(vec![y.clone(), y], 1)),
            Some(How::WrongRank) => AnyTensor::new(y.unsqueeze::<3>()),
            Some(How::WrongKind) => AnyTensor::new(y.int()),
            Some(How::EmptyOutput) => AnyTensor::new(y.slice(0..0)),
            Some(How::NeverAnswer) => {
                std::thread::sleep(FOREVER);
                AnyTensor::new(y)
            }
            _ => AnyTensor::new(y),
        };
        (y, ids)
    }
}

fn loss((y, ids): (AnyTensor, Tensor<2, Int>), target: Tensor<2>, fault: Option<Fault>) -> Tensor<1> {
    let y = y.into_tensor::<2, Float>().unwrap();
    let squares = (y - target).square();
    match fault.filter(|fault| fault.microbatch == number(&ids)).map(|fault| fault.how) {
        Some(How::LossPanics) => panic!("a broken loss"),
        Some(How::LossOfManyNumbers) => squares.reshape([-1]),
        Some(How::LossOfNoNumber) => squares.reshape([-1]).slice(0..0),
        _ => squares.mean(),
    }
}

/// The stage factory of a pipeline with one fault.
pub(crate) fn faulty(fault: Option<Fault>) -> impl Fn(&StageContext) -> StageBox + Send + Sync + 'static {
    move |at| {
        let fault = fault.filter(|fault| fault.stage == at.index);
        let linear = |device: &Device| LinearConfig::new(WIDTH, WIDTH).init(device);
        let module = Faulty { linear: init_seeded(at.index as u64, &at.device, linear), fault };
        match at.is_last() {
            true => StageBox::with_loss(module, move |output, target| loss(output, target, fault)),
            false => StageBox::new(module),
        }
    }
}

/// One sample per microbatch.
pub(crate) fn batch(microbatches: usize) -> Batch {
    let device = Device::flex();
    let ids = Tensor::<1, Int>::arange(0..microbatches as i64, &device).reshape([microbatches, 1]);
    let x = ids.clone().float().repeat_dim(1, WIDTH) / microbatches as f32;
    Batch::new((x.clone(), ids)).target(x * 0.5)
}
