//! Optional parts of the mixture-of-experts model that the library does not know: additions to token embeddings and
//! to attention scores.

use burn::module::{Module, Param};
use burn::nn::{Embedding, EmbeddingConfig, Initializer};
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::ops::DeferredForward;

/// The usual small normal initial values.
pub(crate) const SMALL: Initializer = Initializer::Normal { mean: 0.0, std: 0.02 };

/// Embeddings of the last two and the last three tokens, hashed into tables.
///
/// Huang et al., "Over-Tokenized Transformer" (2025): there are far more n-grams than table rows, so n-grams share
/// rows.
#[derive(Module, Debug)]
pub struct NGramHash {
    tables: Vec<Embedding>,
    buckets: usize,
}

/// A prime larger than a byte, so that equal tokens in another order hash differently.
const PRIME: i64 = 257;

impl NGramHash {
    /// Tables of `buckets` rows.
    pub fn new(buckets: usize, d_model: usize, device: &Device) -> Self {
        let table = |_| EmbeddingConfig::new(buckets, d_model).with_initializer(SMALL).init(device);
        Self { tables: (2..4).map(table).collect(), buckets }
    }

    /// The sum of the tables' rows for each token of `[batch, seq]`. Positions before a sequence count as zeros.
    pub fn forward(&self, tokens: &Tensor<2, Int>) -> Tensor<3> {
        let embed = |(n, table): (usize, &Embedding)| table.forward_deferred(hashed(tokens, n + 2, self.buckets));
        let [first, second] = [0, 1].map(|n| embed((n, &self.tables[n])));
        first + second
    }
}

/// The bucket of the last `n` tokens, for each token.
pub fn hashed(tokens: &Tensor<2, Int>, n: usize, buckets: usize) -> Tensor<2, Int> {
    let ([batch, seq], device) = (tokens.dims(), tokens.device());
    let back = |steps: usize| match steps {
        0 => tokens.clone(),
        steps if steps < seq => {
            let zeros = Tensor::<2, Int>::zeros([batch, steps], &device);
            Tensor::cat(vec![zeros, tokens.clone().narrow(1, 0, seq - steps)], 1)
        }
        _ => Tensor::zeros([batch, seq], &device),
    };
    let start = Tensor::<2, Int>::zeros([batch, seq], &device);
    // Reduced modulo at every step, so that 32 bits suffice for any number of buckets below eight million.
    (0..n).rev().fold(start, |hash, steps| (hash.mul_scalar(PRIME) + back(steps)).remainder_scalar(buckets as i64))
}

/// `gamma * tanh(alpha * x) + beta`, in place of a norm: Zhu et al., "Transformers without Normalization" (2025).
#[derive(Module, Debug)]
pub struct DynamicTanh {
    alpha: Param<Tensor<1>>,
    gamma: Param<Tensor<1>>,
    beta: Param<Tensor<1>>,
}

impl DynamicTanh {
    /// The paper's initial values: `alpha` one half, `gamma` 1, `beta` 0.
    pub fn new(d_model: usize, device: &Device) -> Self {
        Self {
            alpha: Param::from_tensor(Tensor::full([1], 0.5, device)),
            gamma: Param::from_tensor(Tensor::ones([d_model], device)),
            beta: Param::from_tensor(Tensor::zeros([d_model], device)),
        }
    }

    /// Runs on `[batch, seq, d_model]`.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let squashed = (x * self.alpha.val().unsqueeze::<3>()).tanh();
        squashed * self.gamma.val().unsqueeze::<3>() + self.beta.val().unsqueeze::<3>()
    }
}

/// A bias on attention scores for each relation between two tokens: one number per relation and head. Every stage
/// holds a copy of the one table.
#[derive(Module, Debug)]
pub struct RelationBias {
    table: Param<Tensor<2>>,
}

impl RelationBias {
    /// A table `[heads, relations]`.
    pub fn new(relations: usize, heads: usize, device: &Device) -> Self {
        Self { table: SMALL.init([heads, relations], device) }
    }

    /// Converts the relations of token pairs `[batch, relations, seq, seq]`, zeros and ones, to a bias
    /// `[batch, heads, seq, seq]`.
    pub fn forward(&self, related: Tensor<4>) -> Tensor<4> {
        let [batch, relations, seq, _] = related.dims();
        let [heads, _] = self.table.dims();
        let table = self.table.val().unsqueeze::<3>().expand([batch, heads, relations]);
        table.matmul(related.reshape([batch, relations, seq * seq])).reshape([batch, heads, seq, seq])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_told_by_the_last_tokens_and_their_order() {
        let tokens = Tensor::<2, Int>::from_ints([[5, 7, 5, 7, 9, 255, 255, 255]], &Device::flex());
        let of = |n, buckets| hashed(&tokens, n, buckets).into_data().iter::<i64>().collect::<Vec<i64>>();
        for (n, buckets) in [(2, 1000), (3, 97), (3, 7_999_993)] {
            let expected = |i: usize| {
                let token =
                    |back: usize| [5, 7, 5, 7, 9, 255, 255, 255].get(i.wrapping_sub(back)).copied().unwrap_or(0);
                (0..n).rev().fold(0i64, |hash, back| (hash * PRIME + token(back)) % buckets)
            };
            assert_eq!(of(n, buckets as usize), (0..8).map(expected).collect::<Vec<i64>>(), "{n}-grams, {buckets}");
        }
        let two = of(2, 100_000);
        assert_eq!(two[1], two[3]);
        assert_ne!(two[1], two[2], "7 after 5 is not 5 after 7");
    }

    #[test]
    fn a_bias_is_the_sum_over_the_relations_that_two_tokens_are_in() {
        let device = Device::flex();
        let mut bias = RelationBias::new(2, 1, &device);
        bias.table = bias.table.map(|_| Tensor::from_floats([[10.0, 1.0]], &device));
        let related = Tensor::<4>::from_floats([[[[1.0, 0.0], [1.0, 0.0]], [[1.0, 1.0], [0.0, 0.0]]]], &device);
        let got: Vec<f32> = bias.forward(related).into_data().iter::<f32>().collect();
        assert_eq!(got, [11.0, 1.0, 10.0, 0.0]);
    }
}
