//! Blocks: which tokens attention sees, what experts compute, and that weight gradients are deferred in a split
//! schedule.

use crate::cases::{Text, builder, config, noise};
use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::stage::init_seeded;
use burn_pipeline_moe::layers::{
    AttentionConfig, BlockKind, FeedForwardConfig, MixtureOfExpertsConfig, PatternError, parse_pattern,
};
use burn_pipeline_moe::router::Capacity;

const D: usize = 6;

fn x(batch: usize, seq: usize) -> Tensor<3> {
    Tensor::<1>::from_floats(&*noise(4, batch * seq * D), &Device::flex()).reshape([batch, seq, D])
}

fn floats<const R: usize>(tensor: Tensor<R>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// For each pair of tokens, true if a change of the second reaches the first.
fn sees(window: Option<usize>, documents: &[i32]) -> Vec<Vec<bool>> {
    let seq = documents.len();
    let attention = AttentionConfig::new(D, 2).with_window(window);
    let attention = init_seeded(1, &Device::flex(), |device| attention.init(device));
    let documents = Tensor::<1, Int>::from_ints(documents, &Device::flex()).unsqueeze::<2>();
    let before = floats(attention.forward(x(1, seq), &documents.clone().into()));
    let mut sees = vec![vec![false; seq]; seq];
    for from in 0..seq {
        let mut values = floats(x(1, seq));
        values[from * D] += 3.0;
        let values = Tensor::<1>::from_floats(&*values, &Device::flex()).reshape([1, seq, D]);
        let after = floats(attention.forward(values, &documents.clone().into()));
        for to in 0..seq {
            sees[to][from] = before[to * D..][..D] != after[to * D..][..D];
        }
    }
    sees
}

#[test]
fn a_token_sees_the_past_of_its_document_within_the_window() {
    for (window, documents) in [
        (None, [0; 6]),
        (None, [0, 0, 0, 1, 1, 2]),
        (Some(2), [0; 6]),
        (Some(1), [0; 6]),
        (Some(3), [0, 1, 1, 1, 1, 1]),
    ] {
        let expected = |to: usize, from: usize| {
            from <= to && documents[from] == documents[to] && window.is_none_or(|window| to - from < window)
        };
        for (to, row) in sees(window, &documents).iter().enumerate() {
            for (from, &seen) in row.iter().enumerate() {
                assert_eq!(seen, expected(to, from), "window {window:?}, {documents:?}: token {to} and {from}");
            }
        }
    }
}

#[test]
fn experts_that_all_tokens_take_equal_a_sum_of_feed_forward_layers() {
    // Two experts, both chosen: gates add up to 1, and nothing is dropped.
    let config = MixtureOfExpertsConfig::new(D, 5, 2).with_capacity(Capacity::Dropless);
    let layer = init_seeded(3, &Device::flex(), |device| config.init(device));
    let (y, auxiliary) = layer.forward(x(2, 4));
    let gates = {
        let routing = layer.router.forward(x(2, 4).reshape([8, D]));
        let experts = routing.experts.into_data().iter::<i64>().collect::<Vec<_>>();
        let gates = floats(routing.gates);
        move |token: usize, expert: i64| gates[2 * token + usize::from(experts[2 * token] != expert)]
    };
    let weights = weights(&layer);
    let [gate, up, down] = [&weights[1], &weights[2], &weights[3]];
    let input = floats(x(2, 4));
    let got = floats(y);
    for token in 0..8 {
        let row = &input[token * D..][..D];
        let product = |matrix: &[f32], row: &[f32], columns: usize| -> Vec<f32> {
            (0..columns).map(|j| row.iter().enumerate().map(|(i, x)| x * matrix[i * columns + j]).sum()).collect()
        };
        let mut expected = [0.0f32; D];
        for expert in 0..2 {
            let of = |weights: &[f32]| weights[expert * D * 5..][..D * 5].to_vec();
            let (g, u) = (product(&of(gate), row, 5), product(&of(up), row, 5));
            let inside: Vec<f32> = g.iter().zip(&u).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            let out = product(&of(down), &inside, D);
            expected.iter_mut().zip(out).for_each(|(sum, y)| *sum += gates(token, expert as i64) * y);
        }
        for (got, expected) in got[token * D..][..D].iter().zip(expected) {
            assert!((got - expected).abs() < 1e-7, "{got} {expected}");
        }
    }
    let load: Vec<i64> = auxiliary.load.unwrap().into_data().iter::<i64>().collect();
    assert_eq!(load, [8, 8]);
}

fn weights<M: Module>(layer: &M) -> Vec<Vec<f32>> {
    pipeline_tests::reference::weights(layer)
}

#[test]
fn a_shared_expert_adds_to_every_token_dropped_ones_included() {
    // One row per expert: most tokens are dropped and get the shared expert alone.
    let config =
        MixtureOfExpertsConfig::new(D, 5, 2).with_capacity(Capacity::Factor(0.01)).with_top_k(1).with_shared(2);
    let layer = init_seeded(3, &Device::flex(), |device| config.init(device));
    let (y, auxiliary) = layer.forward(x(1, 6));
    let dropped = auxiliary.dropped.unwrap().into_scalar::<i64>();
    assert!(dropped >= 4);
    // The shared layer's weights come last.
    let weights = weights(&layer);
    let shared = init_seeded(4, &Device::flex(), |device| FeedForwardConfig::new(D, 10).init(device));
    let mut values = weights[weights.len() - 3..].iter();
    let shared = shared.map(&mut Set(&mut values));
    let expected = floats(shared.forward(x(1, 6)));
    let alone = floats(y).chunks(D).zip(expected.chunks(D)).filter(|(a, b)| a == b).count();
    assert_eq!(alone as i64, dropped);
}

struct Set<'a, 'b>(&'a mut std::slice::Iter<'b, Vec<f32>>);

impl burn::module::ModuleMapper for Set<'_, '_> {
    fn map_float<const R: usize>(&mut self, param: burn::module::Param<Tensor<R>>) -> burn::module::Param<Tensor<R>> {
        let values = self.0.next().unwrap();
        param.map(|tensor| Tensor::<1>::from_floats(&**values, &Device::flex()).reshape(tensor.dims()))
    }
}

#[test]
fn patterns_name_blocks_and_wrong_letters_are_refused() {
    use BlockKind::{Dense, DenseDepths, Experts, ExpertsDepths};
    assert_eq!(parse_pattern("DEde").unwrap(), [Dense, Experts, DenseDepths, ExpertsDepths]);
    assert_eq!(parse_pattern("DExE"), Err(PatternError::Letter { letter: 'x', place: 2 }));
    assert_eq!(parse_pattern(""), Err(PatternError::Empty));
}

#[test]
fn weight_gradients_of_all_products_wait_for_w() {
    let (config, schedule) = (config(), by_name("ZBH1").unwrap());
    let size = Size { ranks: 2, chunks: 1, microbatches: 3 };
    let mut pipeline = builder(schedule.as_ref(), size, &config, |part, _| part).build().unwrap();
    pipeline.accumulate(Text::new(1, 3).batch()).unwrap();
    for (stage, report) in pipeline.engines().unwrap() {
        let deferred = report.deferred.unwrap();
        // Norms and learned positions are Burn's own operations; every matmul is deferred.
        assert!(deferred.share() > 0.9, "stage {stage:?}: {deferred:?}");
        assert!(deferred.operations > 20, "stage {stage:?}: {deferred:?}");
    }
}
