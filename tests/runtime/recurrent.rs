//! Compiled recurrent and convolutional stages: the same function under every schedule, and Burn's own numbers up
//! to rounding.

use burn::module::Module;
use burn::nn::conv::{Conv1d, Conv1dConfig};
use burn::nn::{Lstm, LstmConfig, PaddingConfig1d};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Accumulation, Batch, SplitBackward, Stage, StageBox};
use burn_pipeline::train::Pipeline;

const STEPS: usize = 9;
const WIDTH: usize = 24;
const MICROBATCHES: usize = 4;

#[derive(Module, Debug)]
struct Recurrent {
    mixed: Conv1d,
    layer: Lstm,
}

impl Stage for Recurrent {
    type Input = Tensor<3>;
    type Extra = ();
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, (): ()) -> Tensor<3> {
        self.layer.forward(self.mixed.forward(x).tanh(), None).0
    }
}

/// Fixed values that differ from element to element.
fn wave(speed: f32) -> Tensor<3> {
    let size = [2 * MICROBATCHES, STEPS, WIDTH];
    let count = size.iter().product::<usize>() as i64;
    Tensor::<1, burn::tensor::Int>::arange(0..count, &Device::flex()).float().mul_scalar(speed).sin().reshape(size)
}

/// The losses of three steps of four stages.
fn losses(schedule: &str, size: Size, compiled: bool) -> Vec<f64> {
    let mut pipeline = Pipeline::builder()
        .schedule(schedule, size)
        .devices(vec![Device::flex()])
        .stages(|at| {
            let padding = PaddingConfig1d::Explicit(1, 1);
            let mixed = Conv1dConfig::new(STEPS, STEPS, 3).with_padding(padding).init(&at.device);
            let stage = Recurrent { mixed, layer: LstmConfig::new(WIDTH, WIDTH, true).init(&at.device) };
            // The same values in every run.
            let stage = stage.map(&mut Same(0.01));
            match at.is_last() {
                true => StageBox::with_loss(stage, |y: Tensor<3>, target: Tensor<3>| (y - target).square().mean()),
                false => StageBox::new(stage),
            }
        })
        .optimizer(|| AdamWConfig::new().init())
        .split(SplitBackward::Captured)
        .compile(compiled)
        .accumulation(Accumulation::Ordered)
        .build()
        .unwrap();
    let batch = || Batch::new(wave(0.37)).target(wave(0.11));
    let losses = (0..3).map(|_| pipeline.step(batch(), 1e-2).unwrap().loss).collect();
    if compiled {
        let engines = pipeline.engines().unwrap();
        let text = engines[1].1.programs[0].backward().compiled().unwrap();
        // The convolution's two gradients, and the joined operands of the steps' matmuls.
        assert!(text.contains("2 convolutions") && text.contains("Place["), "{text}");
    }
    losses
}

/// Sets parameters to fixed values that differ from element to element.
struct Same(f32);

impl burn::module::ModuleMapper for Same {
    fn map_float<const D: usize>(&mut self, param: burn::module::Param<Tensor<D>>) -> burn::module::Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        self.0 += 0.07;
        let (shape, device) = (tensor.shape(), tensor.device());
        let count = shape.num_elements() as i64;
        let values = Tensor::<1, burn::tensor::Int>::arange(0..count, &device).float().mul_scalar(self.0).sin();
        burn::module::Param::from_mapped_value(id, values.mul_scalar(0.2).reshape(shape).require_grad(), mapper)
    }
}

#[test]
fn splitting_the_backward_of_recurrent_layers_and_convolutions_changes_no_bit() {
    let size = Size::new(2, MICROBATCHES).with_chunks(2);
    let whole = losses("Interleaved1F1B", size, true);
    assert_eq!(whole, losses("InterleavedZeroBubble", size, true));
    for (compiled, plain) in whole.iter().zip(losses("Interleaved1F1B", size, false)) {
        assert!((compiled - plain).abs() <= 1e-5 * plain, "{compiled} for {plain}");
    }
}
