//! Small stages that each have one property that a capture can get wrong.

use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::activation::{gelu, relu};
use burn::tensor::{Device, Distribution, Int, Tensor};
use burn_pipeline::stage::Stage;

pub(crate) const WIDTH: usize = 8;

pub(super) fn device() -> Device {
    Device::flex().autodiff()
}

pub(super) fn linear() -> Linear {
    LinearConfig::new(WIDTH, WIDTH).init(&device())
}

/// Random numbers without autodiff.
pub(crate) fn noise<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex())
}

fn square() -> Param<Tensor<2>> {
    Param::from_tensor(Tensor::random([WIDTH, WIDTH], Distribution::Normal(0.0, 0.5), &device()))
}

macro_rules! stage {
    ($name:ident, $input:ty, $extra:ty, $output:ty, |$this:ident, $x:pat_param, $e:pat_param| $forward:expr) => {
        impl Stage for $name {
            type Input = $input;
            type Extra = $extra;
            type Output = $output;

            fn forward(&self, $x: $input, $e: $extra) -> $output {
                let $this = self;
                $forward
            }
        }
    };
}

/// Linear layers with ReLU.
#[derive(Module, Debug)]
pub(crate) struct Tower {
    pub(super) layers: Vec<Linear>,
}

impl Tower {
    pub(crate) fn new(layers: usize) -> Self {
        Self { layers: (0..layers).map(|_| linear()).collect() }
    }
}

stage!(Tower, Tensor<2>, (), Tensor<2>, |this, x, ()| this.layers.iter().fold(x, |x, l| relu(l.forward(x))));

/// One weight, used twice in sequence.
#[derive(Module, Debug)]
pub(super) struct Twice {
    weight: Param<Tensor<2>>,
}

impl Twice {
    pub(super) fn new() -> Self {
        Self { weight: square() }
    }
}

stage!(Twice, Tensor<2>, (), Tensor<2>, |this, x, ()| x.matmul(this.weight.val()).matmul(this.weight.val()));

/// The same parameter in two fields.
#[derive(Module, Debug)]
pub(super) struct Tied {
    first: Param<Tensor<2>>,
    between: Linear,
    second: Param<Tensor<2>>,
}

impl Tied {
    pub(super) fn new() -> Self {
        let first = square();
        Self { second: first.clone(), first, between: linear() }
    }
}

stage!(Tied, Tensor<2>, (), Tensor<2>, |this, x, ()| {
    gelu(this.between.forward(x.matmul(this.first.val()))).matmul(this.second.val().transpose())
});

/// An intermediate value and a function of it, an integer tensor, the input itself, and an untracked value.
#[derive(Module, Debug)]
pub(super) struct Several {
    first: Linear,
    second: Linear,
}

impl Several {
    pub(super) fn new() -> Self {
        Self { first: linear(), second: linear() }
    }
}

type Outputs = (Tensor<2>, Tensor<2>, Tensor<2, Int>, Tensor<2>, Tensor<2>);

stage!(Several, (Tensor<2>, Tensor<2, Int>), (), Outputs, |this, (x, ids), ()| {
    let hidden = this.first.forward(x.clone());
    let constant = ids.clone().float();
    (hidden.clone(), this.second.forward(hidden), ids, x, constant)
});

/// A frozen layer between two trained ones, and a frozen bias.
#[derive(Module, Debug)]
pub(super) struct Frozen {
    first: Linear,
    frozen: Linear,
    last: Linear,
}

impl Frozen {
    pub(super) fn new() -> Self {
        Self { first: linear(), frozen: linear().no_grad(), last: linear() }
    }

    pub(super) fn all() -> Self {
        Self::new().no_grad()
    }
}

stage!(Frozen, Tensor<2>, (), Tensor<2>, |this, x, ()| {
    this.last.forward(relu(this.frozen.forward(relu(this.first.forward(x)))))
});

/// An integer input, an optional one, and extras, but no float input.
#[derive(Module, Debug)]
pub(super) struct Lookup {
    rows: Embedding,
    layer: Linear,
}

impl Lookup {
    pub(super) fn new() -> Self {
        Self { rows: EmbeddingConfig::new(5, WIDTH).init(&device()), layer: linear() }
    }
}

stage!(
    Lookup,
    (Tensor<2, Int>, Option<Tensor<3>>),
    (Tensor<2>, Vec<Tensor<2, Int>>),
    Tensor<3>,
    |this, (ids, more), (scale, others)| {
        let [batch, seq] = ids.dims();
        let ids = others.into_iter().fold(ids, |ids, other| (ids + other).remainder_scalar(5));
        let x = this.rows.forward(ids) * scale.reshape([batch, seq, 1]);
        this.layer.forward(more.into_iter().fold(x, |x, more| x + more))
    }
);

/// A constant of the module that is no parameter.
#[derive(Module, Debug)]
pub(super) struct Constant {
    layer: Linear,
    table: Tensor<2>,
}

impl Constant {
    pub(super) fn new() -> Self {
        Self { layer: linear(), table: noise([1, WIDTH]).autodiff() }
    }
}

stage!(Constant, Tensor<2>, (), Tensor<2>, |this, x, ()| this.layer.forward(x * this.table.clone())
    + this.table.clone());

/// No parameter at all.
#[derive(Module, Debug)]
pub(super) struct Bare {
    factor: f64,
}

impl Bare {
    pub(super) fn new() -> Self {
        Self { factor: 3.0 }
    }
}

stage!(Bare, Tensor<2>, (), (Tensor<2>, Tensor<2>), |this, x, ()| (x.clone().mul_scalar(this.factor), x.exp()));

/// Returns its input twice.
#[derive(Module, Debug)]
pub(super) struct Through {
    unused: Linear,
}

impl Through {
    pub(super) fn new() -> Self {
        Self { unused: linear() }
    }
}

stage!(Through, Tensor<2>, (), (Tensor<2>, Tensor<2>), |_this, x, ()| (x.clone(), x));

/// Drops half of its input, and scales it by a weight.
#[derive(Module, Debug)]
pub(super) struct Noisy {
    dropout: Dropout,
    pub(super) weight: Param<Tensor<2>>,
}

impl Noisy {
    pub(super) fn new() -> Self {
        Self { dropout: DropoutConfig::new(0.5).init(), weight: Param::from_tensor(noise([1, WIDTH]).autodiff()) }
    }

    pub(super) fn frozen() -> Self {
        Self::new().freeze()
    }
}

stage!(Noisy, Tensor<2>, (), Tensor<2>, |this, x, ()| this.dropout.forward(x) * this.weight.val());

/// Reads a value to decide what to do.
#[derive(Module, Debug)]
pub(crate) struct Looking {
    layer: Linear,
}

impl Looking {
    pub(crate) fn new() -> Self {
        Self { layer: linear() }
    }
}

stage!(Looking, Tensor<2>, (), Tensor<2>, |this, x, ()| {
    let y = this.layer.forward(x);
    if y.clone().sum().into_scalar::<f32>() > 0.0 { relu(y) } else { gelu(y) }
});

/// Keeps running statistics.
#[derive(Module, Debug)]
pub(crate) struct Running {
    layer: Linear,
    norm: BatchNorm,
}

impl Running {
    pub(crate) fn new() -> Self {
        Self { layer: linear(), norm: BatchNormConfig::new(WIDTH).init(&device()) }
    }

    /// Keeps its statistics fixed.
    pub(super) fn frozen() -> Self {
        let Self { layer, norm } = Self::new();
        Self { layer, norm: norm.freeze() }
    }
}

stage!(Running, Tensor<2>, (), Tensor<2>, |this, x, ()| this.norm.forward(this.layer.forward(x)));

/// Detaches a part of its graph.
#[derive(Module, Debug)]
pub(super) struct Detached {
    layer: Linear,
    other: Linear,
}

impl Detached {
    pub(super) fn new() -> Self {
        Self { layer: linear(), other: linear() }
    }
}

stage!(Detached, Tensor<2>, (), Tensor<2>, |this, x, ()| {
    let y = this.layer.forward(x.clone());
    y.clone() * this.other.forward(y.detach()) + x.detach()
});
