//! Stages of one layer of Burn's, or of one weight.

use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::Tensor;
use burn_pipeline::stage::Stage;

/// A linear layer.
#[derive(Module, Debug)]
pub struct Layer {
    /// The layer.
    pub linear: Linear,
}

impl Stage for Layer {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.linear.forward(x)
    }
}

/// A matmul with a weight. Its backward needs the input and the weight, but not the output.
#[derive(Module, Debug)]
pub struct Product {
    /// The weight.
    pub w: Param<Tensor<2>>,
}

impl Stage for Product {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        x.matmul(self.w.val())
    }
}
