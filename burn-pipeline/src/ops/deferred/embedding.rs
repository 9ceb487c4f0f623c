//! Burn's embedding layer, with a deferred gradient of its table.

use super::{DeferredForward, DeferredOp, deferred, defers};
use crate::payload::AnyTensor;
use burn::backend::ops::ModuleOps;
use burn::backend::{Dispatch, DispatchTensor};
use burn::nn::Embedding;
use burn::tensor::{Int, Tensor};

/// Rows `[b, s, d]` of a table `[n, d]`, selected by indices `[b, s]`; the only operand is the table.
#[derive(Debug)]
struct EmbeddingOp {
    indices: DispatchTensor,
}

impl DeferredOp for EmbeddingOp {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn inputs(&self) -> usize {
        0
    }

    fn forward(&self, operands: &[DispatchTensor]) -> DispatchTensor {
        Dispatch::embedding(operands[0].clone(), self.indices.clone())
    }

    fn gradient(&self, _: usize, operands: &[DispatchTensor], of_output: &DispatchTensor) -> DispatchTensor {
        Dispatch::embedding_backward(operands[0].clone(), of_output.clone(), self.indices.clone())
    }
}

impl DeferredForward<Tensor<2, Int>> for Embedding {
    type Output = Tensor<3>;

    fn forward_deferred(&self, input: Tensor<2, Int>) -> Tensor<3> {
        if !defers(&self.weight) {
            return self.forward(input);
        }
        let indices = AnyTensor::new(input).inner().into_dispatch();
        Tensor::from_dispatch(deferred(EmbeddingOp { indices }, vec![self.weight.val().into_dispatch()]))
    }
}
