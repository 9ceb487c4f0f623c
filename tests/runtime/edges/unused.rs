//! Outputs that nothing downstream uses get no gradient, and neither do values that only they depend on. Zeros
//! instead would be noticed: AdamW would let the weights decay.

use crate::cases::{Case, noise, read};
use crate::parity::builder;
use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Tensor, TensorData};
use burn_pipeline::boundary;
use burn_pipeline::payload::{AnyTensor, Boundary, Payload, PayloadSpec};
use burn_pipeline::schedule::{GPipe, Size};
use burn_pipeline::stage::{Batch, SingleStage, SplitBackward, Stage, StageBox, init_seeded};
use burn_pipeline::train::StageContext;
use pipeline_tests::reference::whole;

const WIDTH: usize = 4;
const LAYERS: usize = 8;

/// The values that cross between layers.
#[derive(Debug, Clone)]
pub(super) struct Wide {
    /// New in every layer, and unused.
    aside: Option<Tensor<2>>,
    x: Tensor<2>,
    /// Made by the first layer and passed on by all, unused.
    carried: Option<Tensor<2>>,
    /// Made by the first layer and passed on by all, used by the last.
    late: Option<Tensor<2>>,
}
boundary!(struct Wide { aside, x, carried, late });

#[derive(Module, Debug)]
struct Layer {
    linear: Linear,
    aside: Linear,
    carried: Option<Linear>,
    index: usize,
}

impl Layer {
    fn forward(&self, input: Wide) -> Wide {
        let mut x = tanh(self.linear.forward(input.x));
        if self.index + 1 == LAYERS {
            x = x + input.late.clone().expect("the first layer made it");
        }
        let carried = input.carried.or_else(|| self.carried.as_ref().map(|made| made.forward(x.clone())));
        let late = input.late.or_else(|| Some(x.clone().square()));
        Wide { aside: Some(self.aside.forward(x.clone())), x, carried, late }
    }
}

#[derive(Module, Debug)]
pub(super) struct Part {
    layers: Vec<Layer>,
}

impl Part {
    fn new(at: &StageContext) -> Self {
        let linear = |seed: usize| {
            init_seeded(seed as u64, &at.device, |device: &Device| LinearConfig::new(WIDTH, WIDTH).init(device))
        };
        let layer = |index: usize| Layer {
            linear: linear(500 + index),
            aside: linear(600 + index),
            carried: (index == 0).then(|| linear(700)),
            index,
        };
        Self { layers: at.layers(LAYERS).map(layer).collect() }
    }
}

impl Stage for Part {
    type Input = Wide;
    type Extra = ();
    type Output = Wide;

    fn forward(&self, input: Wide, (): ()) -> Wide {
        self.layers.iter().fold(input, |input, layer| layer.forward(input))
    }
}

fn loss(output: Wide, target: Tensor<2>) -> Tensor<1> {
    (output.x - target).square().mean()
}

pub(super) struct Unused {
    x: Tensor<2>,
    target: Tensor<2>,
}

impl Unused {
    pub(super) fn new(samples: usize) -> Self {
        let draw =
            |seed| Tensor::from_data(TensorData::new(noise(seed, samples * WIDTH), [samples, WIDTH]), &Device::flex());
        Self { x: draw(1), target: draw(2) }
    }
}

fn enters(x: Tensor<2>) -> Wide {
    Wide { aside: None, x, carried: None, late: None }
}

impl Case for Unused {
    type Model = Part;

    fn model(&self) -> Part {
        Part::new(&whole())
    }

    fn stage(at: &StageContext) -> StageBox {
        match at.is_last() {
            true => StageBox::with_loss(Part::new(at), loss),
            false => StageBox::new(Part::new(at)),
        }
    }

    fn batch(&self) -> Batch {
        Batch::new(enters(self.x.clone())).target(self.target.clone())
    }

    fn loss(&self, model: &Part, samples: std::ops::Range<usize>) -> Tensor<1> {
        let x = self.x.clone().slice([samples.clone()]).autodiff();
        loss(model.forward(enters(x), ()), self.target.clone().slice([samples]).autodiff())
    }
}

/// For each tensor of a list of gradients, true if it is there.
fn present(spec: &PayloadSpec) -> Vec<bool> {
    // Its length, then for each tensor `tag 1` and the tensor's spec, or `tag 0`.
    let text = spec.to_string();
    text.split("; ").skip(1).filter(|part| part.starts_with("tag")).map(|part| part.starts_with("tag 1")).collect()
}

#[test]
fn nothing_is_handed_back_for_an_output_that_nobody_uses() {
    for split in [SplitBackward::Eager, SplitBackward::Captured] {
        let mut pipeline = builder::<Unused>(&GPipe, Size::new(3, 2)).split(split).build().unwrap();
        let known = pipeline.metadata(Unused::new(4).batch()).unwrap();
        let form = |stage: usize, back: bool| {
            let known = &known[stage].1;
            let form = if back { &known.input_gradients } else { &known.output_gradients };
            present(form.as_ref().unwrap())
        };
        // In the order of the struct: aside, x, carried, late.
        let expected = [false, true, false, true];
        assert_eq!([form(0, false), form(1, false), form(1, true), form(2, true)], [expected; 4], "{split:?}");
    }
}

/// Two outputs, each of its own input and weight.
#[derive(Module, Debug)]
struct Two {
    first: Param<Tensor<2>>,
    second: Param<Tensor<2>>,
}

impl Stage for Two {
    type Input = (Tensor<2>, Tensor<2>);
    type Extra = ();
    type Output = (Tensor<2>, Tensor<2>);

    fn forward(&self, (a, b): Self::Input, (): ()) -> Self::Output {
        (a.exp() * self.first.val(), b.exp() * self.second.val())
    }
}

fn ones(device: &Device) -> Tensor<2> {
    Tensor::ones([2, 3], device)
}

fn two(split: SplitBackward, recompute: bool, device: &Device) -> SingleStage {
    let weight = |value: f64| Param::from_tensor(ones(device).mul_scalar(value));
    let stage = StageBox::new(Two { first: weight(2.0), second: weight(3.0) }).recomputed(recompute);
    SingleStage::new(stage, split, true)
}

#[test]
fn each_set_of_used_outputs_has_the_gradients_of_what_it_depends_on_and_no_others() {
    let e = 1f32.exp();
    for split in [SplitBackward::Eager, SplitBackward::Captured] {
        for choice in 0..8 {
            let [recompute, halves, checkpoints] = [1, 2, 4].map(|bit| choice & bit != 0);
            // With Burn's gradient checkpointing, backwards recompute parts of the forward.
            let device = Device::flex().autodiff();
            let device = if checkpoints { device.gradient_checkpointing() } else { device };
            let mut stage = two(split, recompute, &device);
            // One stage for all sets in turn, with several microbatches in flight.
            for microbatch in 0..8 {
                let input = (ones(&Device::flex()), ones(&Device::flex())).into_payload();
                stage.forward(microbatch, input, Payload::default()).unwrap();
            }
            for microbatch in 0..8 {
                let used = [microbatch % 2 == 1, microbatch / 2 % 2 == 1];
                let seeds = used.map(|used| used.then(|| AnyTensor::new(ones(&Device::flex())))).to_vec();
                let inputs = match halves {
                    false => stage.backward(microbatch, seeds).unwrap(),
                    true => {
                        let inputs = stage.backward_input(microbatch, seeds).unwrap();
                        stage.backward_weight(&[microbatch]).unwrap();
                        inputs
                    }
                };
                let place = format!("{split:?}, {choice:#b}, used {used:?}");
                let gradients = stage.gradients();
                stage.optimize(0.0);
                for (at, weight) in [2.0, 3.0].into_iter().enumerate() {
                    let expected = |value: f32| used[at].then(|| vec![value; 6]);
                    assert_eq!(inputs[at].as_ref().map(read), expected(e * weight), "{place}");
                    assert_eq!(gradients[at].as_ref().map(read), expected(e), "{place}");
                }
            }
            assert_eq!(stage.held(), 0);
        }
    }
}

/// One value from which three others are computed. The first output uses all of them, the second two.
#[derive(Module, Debug)]
struct Three {
    weights: Vec<Param<Tensor<2>>>,
}

impl Stage for Three {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = (Tensor<2>, Tensor<2>);

    fn forward(&self, x: Tensor<2>, (): ()) -> Self::Output {
        let h = tanh(x);
        let [q, k, v] = [0, 1, 2].map(|at| h.clone() * self.weights[at].val());
        let scores = tanh(q * k);
        (scores.clone() * v, scores)
    }
}

#[test]
fn gradients_are_added_as_if_an_unused_output_were_not_there() {
    let draw = |seed| Tensor::<2>::from_data(TensorData::new(noise(seed, 400), [20, 20]), &Device::flex());
    let stage = |split| {
        let weights = (0..3).map(|seed| Param::from_tensor(draw(10 + seed).autodiff().require_grad())).collect();
        SingleStage::new(StageBox::new(Three { weights }), split, true)
    };
    let (mut eager, mut captured) = (stage(SplitBackward::Eager), stage(SplitBackward::Captured));
    for microbatch in 0..4 {
        let [expected, given] = [&mut eager, &mut captured].map(|stage| {
            stage.forward(microbatch, draw(microbatch as u64).into_payload(), Payload::default()).unwrap();
            let seeds = vec![Some(AnyTensor::new(draw(20 + microbatch as u64))), None];
            read(stage.backward(microbatch, seeds).unwrap()[0].as_ref().unwrap())
        });
        // The first backward shows which outputs are used.
        match microbatch {
            0 => assert!(expected.iter().zip(&given).all(|(a, b)| (a - b).abs() < 1e-6)),
            _ => assert_eq!(given, expected),
        }
    }
}
