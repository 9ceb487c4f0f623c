//! Enrichments for models of code: five kinds of ids added to token embeddings, and a scale, each compared with
//! sums written by hand.

use crate::cases::{config, noise};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::stage::init_seeded;
use burn_pipeline_moe::layers::{StructureEmbedding, StructureEmbeddingConfig, StructureIds};
use pipeline_examples::moe::signal::Sides;
use pipeline_tests::reference::{weights, whole};

const D: usize = 3;
const ROWS: [usize; 5] = [4, 2, 7, 5, 3];

fn table(rows: [usize; 5]) -> StructureEmbedding {
    let [structures, dependency_levels, depths, siblings, node_types] = rows;
    let config = StructureEmbeddingConfig { d_model: D, structures, dependency_levels, depths, siblings, node_types };
    init_seeded(1, &Device::flex(), |device| config.init(device))
}

fn ints(values: &[i64], shape: [usize; 2]) -> Tensor<2, Int> {
    Tensor::<1, Int>::from_ints(values, &Device::flex()).reshape(shape)
}

/// Ids of one kind, some below and some above the table's range.
fn ids(seed: u64, rows: usize, count: usize) -> Vec<i64> {
    noise(seed, count).iter().map(|x| (x * 1.5 * rows as f32) as i64).collect()
}

fn some(given: [bool; 5], ids: &[Vec<i64>], shape: [usize; 2]) -> StructureIds {
    let kind = |k: usize| given[k].then(|| ints(&ids[k], shape));
    StructureIds {
        structures: kind(0),
        dependency_levels: kind(1),
        depths: kind(2),
        siblings: kind(3),
        node_types: kind(4),
    }
}

#[test]
fn each_token_gets_the_rows_of_the_ids_that_are_there() {
    for case in 0..32u64 {
        let chosen = |salt: u64| std::array::from_fn(|k| case.wrapping_mul(salt) >> k & 1 == 1);
        let (there, given): ([bool; 5], [bool; 5]) = (chosen(1), chosen(0x9d));
        let rows = std::array::from_fn(|k| if there[k] { ROWS[k] } else { 0 });
        let (batch, seq) = (1 + case as usize % 3, 1 + case as usize % 5);
        let (layer, count) = (table(rows), batch * seq);
        let ids: Vec<Vec<i64>> = (0..5).map(|k| ids(case * 5 + k as u64, ROWS[k], count)).collect();
        let x = noise(case, count * D);
        let mut expected = x.clone();
        let mut tables = weights(&layer).into_iter();
        for k in (0..5).filter(|&k| there[k]) {
            let table = tables.next().unwrap();
            for (token, &id) in ids[k].iter().enumerate().filter(|_| given[k]) {
                let row = id.clamp(0, ROWS[k] as i64 - 1) as usize;
                (0..D).for_each(|c| expected[token * D + c] += table[row * D + c]);
            }
        }
        let x = Tensor::<1>::from_floats(&*x, &Device::flex()).reshape([batch, seq, D]);
        let got: Vec<f32> = layer.add(x, some(given, &ids, [batch, seq])).into_data().iter::<f32>().collect();
        assert_eq!(got, expected, "tables {there:?}, ids {given:?}");
    }
}

/// Multiplies the first parameter that it visits, the token table.
struct Larger(Option<f64>);

impl ModuleMapper for Larger {
    fn map_float<const R: usize>(&mut self, param: Param<Tensor<R>>) -> Param<Tensor<R>> {
        match self.0.take() {
            Some(factor) => param.map(|tensor| tensor.mul_scalar(factor)),
            None => param,
        }
    }
}

#[test]
fn scaled_embeddings_are_those_of_a_larger_table() {
    let tokens = ints(&[1, 5, 0, 16, 3, 3], [1, 6]).autodiff();
    let sides = Sides {
        documents: Tensor::zeros_like(&tokens),
        relations: None,
        structure: None,
        platform: None,
        tokens: None,
    };
    let config = config().with_d_model(16);
    let scores = |config: &pipeline_examples::moe::gpt::MoeGptConfig, factor: Option<f64>| -> Vec<f32> {
        let part = config.part(&whole()).unwrap().map(&mut Larger(factor));
        part.whole(tokens.clone(), &sides).0.next.into_data().iter::<f32>().collect()
    };
    let scaled = config.clone().with_scale_embeddings(true);
    assert!(scores(&scaled, None) == scores(&config, Some(4.0)), "the square root of 16");
    assert!(scores(&scaled, None) != scores(&config, None));
}
