//! What attention layers read in addition to hidden states: documents, positions and a bias.

use burn::tensor::{Int, Tensor};

/// Documents, positions and biases of a layer's tokens.
///
/// All layers of a stage share one context. [`AttentionContext::of`] selects the part for a layer that only some tokens
/// take.
#[derive(Debug, Clone)]
pub struct AttentionContext {
    /// The document of each token, `[batch, seq]`.
    pub documents: Tensor<2, Int>,
    /// The position of each token in its sequence, from 0, `[batch, seq]`.
    pub positions: Tensor<2, Int>,
    /// A bias added to the attention scores, `[batch, heads, seq, seq]`.
    pub bias: Option<Tensor<4>>,
}

impl AttentionContext {
    /// The context of whole sequences with these documents `[batch, seq]`, without bias.
    pub fn new(documents: Tensor<2, Int>) -> Self {
        let ([batch, seq], device) = (documents.dims(), documents.device());
        let positions = Tensor::<1, Int>::arange(0..seq as i64, &device).unsqueeze::<2>().expand([batch, seq]);
        Self { documents, positions, bias: None }
    }

    /// Moves the first tokens of the sequences to this position; earlier ones are in a [cache](crate::cache).
    pub fn starting_at(self, position: usize) -> Self {
        Self { positions: self.positions.add_scalar(position as i64), ..self }
    }

    /// Sets a bias `[batch, heads, seq, seq]`.
    pub fn with_bias(self, bias: Option<Tensor<4>>) -> Self {
        Self { bias, ..self }
    }

    /// The context of the tokens at these positions `[batch, count]`, in that order.
    pub fn of(&self, places: Tensor<2, Int>) -> Self {
        let [batch, count] = places.dims();
        let pick = |bias: Tensor<4>| {
            let [_, heads, _, seq] = bias.dims();
            let rows = places.clone().reshape([batch, 1, count, 1]).expand([batch, heads, count, seq]);
            let columns = places.clone().reshape([batch, 1, 1, count]).expand([batch, heads, count, count]);
            bias.gather(2, rows).gather(3, columns)
        };
        Self {
            documents: self.documents.clone().gather(1, places.clone()),
            positions: self.positions.clone().gather(1, places.clone()),
            bias: self.bias.clone().map(pick),
        }
    }

    /// The context of the first `count` tokens of each sequence.
    pub fn first(&self, count: usize) -> Self {
        Self {
            documents: self.documents.clone().narrow(1, 0, count),
            positions: self.positions.clone().narrow(1, 0, count),
            bias: self.bias.clone().map(|bias| bias.narrow(2, 0, count).narrow(3, 0, count)),
        }
    }
}

impl From<Tensor<2, Int>> for AttentionContext {
    fn from(documents: Tensor<2, Int>) -> Self {
        Self::new(documents)
    }
}
