//! The backward is split for real, and right: programs against the plain engine, what they hold, and refusals.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, Tensor};
use burn_pipeline::stage::{Boundary, ErasedStage, ForwardCall, SplitBackward, Stage, StageBox};

fn device() -> Device {
    Device::flex().autodiff()
}

#[derive(Module, Debug)]
struct Tower {
    layers: Vec<Linear>,
}

impl Tower {
    fn new(layers: usize, width: usize) -> Self {
        Self { layers: (0..layers).map(|_| LinearConfig::new(width, width).init(&device())).collect() }
    }
}

impl Stage for Tower {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.layers.iter().fold(x, |x, layer| relu(layer.forward(x)))
    }
}

fn traced(stage: StageBox) -> Box<dyn ErasedStage> {
    let mut stage = stage.into_inner();
    stage.choose(SplitBackward::Traced, true, false).unwrap();
    stage
}

fn call(sample: usize, input: impl Boundary) -> ForwardCall {
    let (input, extra) = (input.into_payload(), ().into_payload());
    ForwardCall { sample, input, extra, target: None, ends_route: false, wants_input_gradient: true }
}

fn noise<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex())
}

#[test]
fn show() {
    let mut stage = traced(StageBox::new(Tower::new(2, 8)));
    stage.forward(call(0, noise([4, 8]))).unwrap();
    println!("{}", stage.report().programs[0]);
    println!("{}", stage.report().programs[0].backward());
    let gpt = crate::cases::small_gpt().part(&pipeline_tests::reference::whole());
    let mut stage = traced(StageBox::new(gpt));
    let ids = Tensor::<2, burn::tensor::Int>::zeros([2, 6], &Device::flex());
    stage.forward(call(0, pipeline_examples::gpt::Signal::Tokens(ids))).unwrap();
    println!("{}", stage.report().programs[0]);
}
