//! A model whose boundary holds a struct in a struct, with all kinds of tensors, and whose stages read extras.

use crate::cases::{Case, noise};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::tanh;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use burn_pipeline::boundary;
use burn_pipeline::stage::{Batch, Split, Stage, StageBox, init_seeded};
use burn_pipeline::train::StageContext;
use pipeline_tests::reference::whole;

const WIDTH: usize = 4;
const LAYERS: usize = 8;

#[derive(Debug, Clone)]
pub(super) struct Deep {
    hidden: Tensor<2>,
    ids: Tensor<1, Int>,
    aside: Option<Aside>,
}
boundary!(struct Deep { hidden, ids, aside });

#[derive(Debug, Clone)]
struct Aside {
    positive: Tensor<2, Bool>,
    /// Needs no gradient: it was detached.
    scale: Tensor<2>,
    /// Has a gradient that nobody uses.
    unused: Tensor<2>,
    /// Only from every other layer.
    again: Vec<Tensor<2>>,
}
boundary!(struct Aside { positive, scale, unused, again });

/// One layer; even ones read the extra `shift`, odd ones `noise`.
#[derive(Module, Debug)]
struct Layer {
    linear: Linear,
    index: usize,
}

impl Layer {
    fn forward(&self, input: Deep, shift: &Tensor<2>, noise: &Tensor<2>) -> Deep {
        let mut x = input.hidden;
        if let Some(aside) = input.aside {
            x = x.mask_fill(aside.positive, 0.25) + aside.scale.mul_scalar(0.5);
            x = aside.again.into_iter().fold(x, |x, again| x + again);
        }
        let extra = if self.index.is_multiple_of(2) { shift.clone() } else { noise.clone().transpose() };
        let row = input.ids.clone().float().unsqueeze_dim::<2>(1).mul_scalar(0.1);
        let y = tanh(self.linear.forward(x) + extra + row);
        let aside = Aside {
            positive: y.clone().greater_elem(0.5),
            scale: y.clone().detach(),
            unused: y.clone().mul_scalar(3.0),
            again: vec![y.clone().square(); self.index % 2],
        };
        Deep { hidden: y, ids: input.ids, aside: Some(aside) }
    }
}

#[derive(Module, Debug)]
pub(super) struct Part {
    layers: Vec<Layer>,
}

impl Part {
    fn new(at: &StageContext) -> Self {
        let layer = |index: usize| {
            let make = |device: &Device| LinearConfig::new(WIDTH, WIDTH).init(device);
            let linear = init_seeded(300 + index as u64, &at.device, make);
            // The first layer is frozen, so its output has no graph.
            Layer { linear: if index == 0 { linear.no_grad() } else { linear }, index }
        };
        Self { layers: at.layers(LAYERS).map(layer).collect() }
    }
}

impl Stage for Part {
    type Input = Deep;
    type Extra = (Tensor<2>, Tensor<2>);
    type Output = Deep;

    fn extras(&self) -> Vec<&'static str> {
        vec!["shift", "noise"]
    }

    fn forward(&self, input: Deep, (shift, noise): Self::Extra) -> Deep {
        self.layers.iter().fold(input, |input, layer| layer.forward(input, &shift, &noise))
    }
}

fn loss(output: Deep, target: Tensor<2>) -> Tensor<1> {
    (output.hidden - target).square().mean()
}

pub(super) struct Rich {
    x: Tensor<2>,
    ids: Tensor<1, Int>,
    /// `[1, width]`, the same for all samples.
    shift: Tensor<2>,
    /// `[width, samples]`: samples are its columns.
    noise: Tensor<2>,
    target: Tensor<2>,
}

impl Rich {
    pub(super) fn new(samples: usize) -> Self {
        let device = Device::flex();
        let draw = |seed, rows: usize, columns: usize| {
            Tensor::<2>::from_data(TensorData::new(noise(seed, rows * columns), [rows, columns]), &device)
        };
        let ids = Tensor::<1, Int>::arange(0..samples as i64, &device).remainder_scalar(3);
        let (shift, target) = (draw(2, 1, WIDTH), draw(4, samples, WIDTH));
        Self { x: draw(1, samples, WIDTH), ids, shift, noise: draw(3, WIDTH, samples), target }
    }
}

impl Case for Rich {
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
        let input = Deep { hidden: self.x.clone(), ids: self.ids.clone(), aside: None };
        let batch = Batch::new(input).target(self.target.clone());
        let batch = batch.extra("shift", self.shift.clone()).split_extra("shift", vec![Split::Replicate]);
        batch.extra("noise", self.noise.clone()).split_extra("noise", vec![Split::Dim(1)])
    }

    fn loss(&self, model: &Part, samples: std::ops::Range<usize>) -> Tensor<1> {
        let hidden = self.x.clone().slice([samples.clone()]).autodiff();
        let ids = self.ids.clone().slice([samples.clone()]).autodiff();
        let noise = self.noise.clone().slice([0..WIDTH, samples.clone()]).autodiff();
        let output = model.forward(Deep { hidden, ids, aside: None }, (self.shift.clone().autodiff(), noise));
        loss(output, self.target.clone().slice([samples]).autodiff())
    }
}
