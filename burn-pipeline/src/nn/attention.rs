//! Self-attention whose heads are divided among a tensor-parallel group.

use super::dropout::GroupDropout;
use super::linear::{RowLinear, columns};
use crate::ops::DeferredForward;
use crate::tensor_parallel::TensorGroup;
use burn::module::Module;
use burn::nn::Linear;
use burn::nn::attention::MultiHeadAttention;
use burn::tensor::activation::{quiet_softmax, softmax};
use burn::tensor::{Bool, Tensor};

/// Burn's multi-head attention of a sequence to itself. Each rank of a group has its share of the heads. Its
/// parameters have the ordinary layer's names.
#[derive(Module, Debug)]
pub struct SelfAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: RowLinear,
    dropout: GroupDropout,
    head_width: usize,
    min_float: f64,
    quiet_softmax: bool,
    #[module(skip)]
    group: TensorGroup,
}

impl SelfAttention {
    /// Cuts an ordinary layer: queries, keys and values by columns, head by head, the output by rows.
    ///
    /// # Panics
    /// Panics if the heads cannot be cut evenly over the group, or `group` is one of data-parallel replicas.
    pub fn cut(layer: MultiHeadAttention, group: &TensorGroup) -> Self {
        group.share(layer.n_heads, "heads");
        Self {
            query: columns(layer.query, group),
            key: columns(layer.key, group),
            value: columns(layer.value, group),
            output: RowLinear::cut(layer.output, group),
            dropout: GroupDropout::cut(layer.dropout, group),
            head_width: layer.d_k,
            min_float: layer.min_float,
            quiet_softmax: layer.quiet_softmax,
            group: group.clone(),
        }
    }

    /// From whole hidden states `[batch, seq, d_model]` to whole ones. `mask` is `[batch or 1, seq, seq]`, true where
    /// a position must not be attended to.
    pub fn forward(&self, x: Tensor<3>, mask: Option<Tensor<3, Bool>>) -> Tensor<3> {
        self.output.forward(self.mixed(self.group.copy_to(x), mask))
    }

    /// Like [`SelfAttention::forward`], from this rank's piece of the sequence, `[batch, seq / ranks, d_model]`, to
    /// its piece. The mask is for the whole sequence.
    pub fn forward_cut(&self, piece: Tensor<3>, mask: Option<Tensor<3, Bool>>) -> Tensor<3> {
        self.output.forward_cut(self.mixed(self.group.all_gather(piece, 1), mask), 1)
    }

    /// The output of this rank's heads for the whole sequence.
    fn mixed(&self, x: Tensor<3>, mask: Option<Tensor<3, Bool>>) -> Tensor<3> {
        let [batch, seq, _] = x.dims();
        let heads = |linear: &Linear| {
            let all = linear.forward_deferred(x.clone());
            let heads = all.dims()[2] / self.head_width;
            all.reshape([batch, seq, heads, self.head_width]).swap_dims(1, 2)
        };
        let (query, key, value) = (heads(&self.query), heads(&self.key), heads(&self.value));
        // As Burn's layer computes them.
        let mut scores = query.matmul(key.transpose()).div_scalar((self.head_width as f32).sqrt());
        if let Some(mask) = mask {
            scores = scores.mask_fill(mask.unsqueeze_dim::<4>(1), self.min_float);
        }
        let weights = if self.quiet_softmax { quiet_softmax(scores, 3) } else { softmax(scores, 3) };
        let mixed = self.dropout.forward_cut(weights, 1).matmul(value);
        let width = mixed.dims()[1] * self.head_width;
        mixed.swap_dims(1, 2).reshape([batch, seq, width])
    }
}
