//! Gradients of a batch's input and of its extras (`Builder::input_gradients`) equal the plain loop's, bit for bit.

mod calls;
mod every_schedule;
mod halves;
mod lists;
mod prompt;
mod ranks;
mod refusals;

use crate::cases::{noise, range, read, sizes};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, activation::tanh};
use burn_pipeline::payload::AnyTensor;
use burn_pipeline::stage::{Split, init_seeded};
use burn_pipeline::{Accumulation, Batch, Builder, Pipeline, Size, Stage, StageBox, StageContext, StepReport};
use pipeline_tests::device::device;

const WIDTH: usize = 6;
const LAYERS: usize = 4;
/// Not a multiple of the microbatches.
const SAMPLES: usize = 7;
const MICROBATCHES: usize = 4;
const RATE: f64 = 1e-2;

#[derive(Module, Debug)]
struct Stack {
    layers: Vec<Linear>,
}

/// A number for each element of a sample, one row for all samples, and an integer for each sample. Each layer uses each
/// once, so that stages of one layer add gradients as a backward over all layers does.
type Extra = (Tensor<2>, Tensor<2>, Tensor<2, Int>);

impl Stage for Stack {
    type Input = Tensor<2>;
    type Extra = Extra;
    type Output = Tensor<2>;

    fn extras(&self) -> Vec<&'static str> {
        vec!["shift", "prompt", "ids"]
    }

    fn forward(&self, x: Tensor<2>, (shift, prompt, ids): Extra) -> Tensor<2> {
        let layer = |x, layer: &Linear| tanh(layer.forward(x) + shift.clone() * prompt.clone()) + ids.clone().float();
        self.layers.iter().fold(x, layer)
    }
}

/// These layers of the model, of which some train.
fn stack(layers: std::ops::Range<usize>, trained: &[usize], device: &Device) -> Stack {
    let layer = |layer: usize| {
        let made = init_seeded(layer as u64, device, |device| LinearConfig::new(WIDTH, WIDTH).init(device));
        if trained.contains(&layer) { made } else { made.no_grad() }
    };
    Stack { layers: layers.map(layer).collect() }
}

fn loss(y: Tensor<2>, wanted: Tensor<2>) -> Tensor<1> {
    (y - wanted).square().mean()
}

fn builder(schedule: &str, size: Size, trained: &'static [usize]) -> Builder {
    Pipeline::builder()
        .schedule(schedule, size)
        .devices(vec![device()])
        .accumulation(Accumulation::Ordered)
        .optimizer(|| AdamWConfig::new().init())
        .input_gradients(true)
        .stages(move |at: &StageContext| {
            let part = stack(at.layers(LAYERS), trained, &at.device);
            if at.is_last() { StageBox::with_loss(part, loss) } else { StageBox::new(part) }
        })
}

/// The tensors of a batch.
struct Data {
    x: Tensor<2>,
    shift: Tensor<2>,
    prompt: Tensor<2>,
    ids: Tensor<2, Int>,
    wanted: Tensor<2>,
}

impl Data {
    fn new(step: u64) -> Self {
        let rows = |seed: u64, rows| {
            Tensor::<1>::from_floats(&*noise(seed + 10 * step, rows * WIDTH), &device()).reshape([rows, WIDTH])
        };
        let ids = Tensor::<1, Int>::arange(0..SAMPLES as i64, &device()).remainder_scalar(2).reshape([SAMPLES, 1]);
        let [x, shift, wanted] = [1, 2, 3].map(|seed| rows(seed, SAMPLES));
        Self { x, shift, prompt: rows(4, 1), ids, wanted }
    }

    fn batch(&self) -> Batch {
        Batch::new(self.x.clone())
            .target(self.wanted.clone())
            .extra("shift", self.shift.clone())
            .extra("prompt", self.prompt.clone())
            .split_extra("prompt", vec![Split::Replicate])
            .extra("ids", self.ids.clone())
    }
}

/// A loss and the gradients of the input and of both float extras.
#[derive(PartialEq, Debug, Clone)]
struct Gradients {
    loss: f64,
    input: Vec<f32>,
    shift: Vec<f32>,
    prompt: Vec<f32>,
}

impl Gradients {
    fn of(report: &StepReport) -> Self {
        let shift: AnyTensor = report.extra_gradient("shift").unwrap();
        let prompt: Tensor<2> = report.extra_gradient("prompt").unwrap();
        assert_eq!(prompt.dims(), [1, WIDTH]);
        let input: Tensor<2> = report.input_gradient().unwrap();
        assert_eq!(input.dims(), [SAMPLES, WIDTH]);
        let read = |tensor| read(&AnyTensor::new::<2, burn::tensor::Float>(tensor));
        Self { loss: report.loss, input: read(input), shift: crate::cases::read(&shift), prompt: read(prompt) }
    }
}

/// How the plain loop reduces: the seed of a microbatch of this many samples beside the first one's, and the factor of
/// the sums.
struct Contract {
    seed: fn(usize, usize) -> f64,
    factor: f64,
}

impl Contract {
    /// The mean over all samples.
    fn mean() -> Self {
        let factor = sizes(SAMPLES, MICROBATCHES)[0] as f64 / SAMPLES as f64;
        Self { seed: |size, first| size as f64 / first as f64, factor }
    }
}

/// The gradients of the plain loop over the model's layers, microbatch by microbatch.
fn plain(model: &Stack, data: &Data, contract: &Contract) -> Gradients {
    let sizes = sizes(SAMPLES, MICROBATCHES);
    let (mut inputs, mut shifts, mut prompt) = (Vec::new(), Vec::new(), None::<Tensor<2>>);
    let mut total = 0.0;
    for i in 0..MICROBATCHES {
        let rows = |of: &Tensor<2>| of.clone().slice([range(&sizes, i)]).autodiff().require_grad();
        let (x, shift, row) = (rows(&data.x), rows(&data.shift), data.prompt.clone().autodiff().require_grad());
        let ids = data.ids.clone().slice([range(&sizes, i)]).autodiff();
        let y = model.forward(x.clone(), (shift.clone(), row.clone(), ids));
        let value = loss(y, data.wanted.clone().slice([range(&sizes, i)]).autodiff());
        total += f64::from(value.clone().into_scalar::<f32>()) * sizes[i] as f64;
        let seed = (contract.seed)(sizes[i], sizes[0]);
        let gradients = if seed == 1.0 { value } else { value.mul_scalar(seed) }.backward();
        inputs.push(x.grad(&gradients).unwrap());
        shifts.push(shift.grad(&gradients).unwrap());
        let own = row.grad(&gradients).unwrap();
        prompt = Some(prompt.map_or(own.clone(), |sum| sum + own));
    }
    let scaled = |sum: Tensor<2>| sum.mul_scalar(contract.factor).into_data().iter::<f32>().collect();
    let (input, shift, prompt) = (Tensor::cat(inputs, 0), Tensor::cat(shifts, 0), prompt.unwrap());
    let loss = total / SAMPLES as f64;
    Gradients { loss, input: scaled(input), shift: scaled(shift), prompt: scaled(prompt) }
}

/// The whole model on one device, frozen.
fn whole() -> Stack {
    stack(0..LAYERS, &[], &device().autodiff())
}
