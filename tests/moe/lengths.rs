//! Rows of several lengths: attention and loss over valid tokens, compared with sums written by hand and with rows
//! without padding, over random shapes.

use crate::cases::noise;
use burn::module::Module;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Batch, Loss, Stage, StageBox, init_seeded};
use burn_pipeline::train::{Pipeline, StageContext};
use burn_pipeline::{Accumulation, Reduction};
use burn_pipeline_moe::layers::{
    AttentionConfig, AttentionContext, Block, BlockConfig, BlockKind, MixtureOfExpertsConfig,
};
use burn_pipeline_moe::lengths::RowLengths;
use pipeline_tests::reference::{Reference, weights};
use proptest::prelude::{ProptestConfig, any};
use proptest::{prop_assert, proptest};

const D: usize = 4;

fn ints(values: &[usize]) -> Tensor<1, Int> {
    let values: Vec<i64> = values.iter().map(|&value| value as i64).collect();
    Tensor::from_ints(&*values, &Device::flex())
}

fn floats<const R: usize>(seed: u64, shape: [usize; R]) -> Tensor<R> {
    Tensor::<1>::from_floats(&*noise(seed, shape.iter().product()), &Device::flex()).reshape(shape)
}

/// Numbers below `below`, drawn with the seed.
fn drawn(seed: u64, count: usize, below: usize) -> Vec<usize> {
    noise(seed, count).iter().map(|x| (((x + 1.0) / 2.0 * below as f32) as usize).min(below - 1)).collect()
}

/// Attention of one head of width [`D`] in `f64`. `sees(row, i, j)` returns true if token `i` of a row sees token
/// `j`.
fn by_hand(x: &[f32], weights: &[Vec<f32>], seq: usize, sees: impl Fn(usize, usize, usize) -> bool) -> Vec<f64> {
    let of = |token: usize, from: usize, c: usize| -> f64 {
        let product: f64 =
            (0..D).map(|r| f64::from(x[token * D + r]) * f64::from(weights[0][r * 3 * D + from + c])).sum();
        product + f64::from(weights[1][from + c])
    };
    let mut out = Vec::new();
    for token in 0..x.len() / D {
        let (row, i) = (token / seq, token % seq);
        let seen: Vec<usize> = (0..seq).filter(|&j| sees(row, i, j)).map(|j| row * seq + j).collect();
        let score = |other: usize| (0..D).map(|c| of(token, 0, c) * of(other, D, c)).sum::<f64>() / (D as f64).sqrt();
        let exp: Vec<f64> = seen.iter().map(|&other| score(other).exp()).collect();
        let mixed = |c: usize| {
            seen.iter().zip(&exp).map(|(&other, exp)| exp * of(other, 2 * D, c)).sum::<f64>() / exp.iter().sum::<f64>()
        };
        let mixed: Vec<f64> = (0..D).map(mixed).collect();
        out.extend((0..D).map(|c| {
            (0..D).map(|r| mixed[r] * f64::from(weights[2][r * D + c])).sum::<f64>() + f64::from(weights[3][c])
        }));
    }
    out
}

#[test]
fn counts_and_documents_may_have_any_integer_type() {
    let of = |dtype| {
        let ints = |values: Vec<i64>, shape: &[usize]| TensorData::new(values, shape.to_vec()).convert_dtype(dtype);
        let lengths = RowLengths::tokens(Tensor::from_data(ints(vec![3, 1], &[2]), (&Device::flex(), dtype)));
        let documents = Tensor::<2, Int>::from_data(ints(vec![0; 8], &[2, 4]), (&Device::flex(), dtype));
        let documents: Vec<i64> = lengths.documents(documents).into_data().iter().collect();
        (lengths.mask(4).into_data().iter::<bool>().collect::<Vec<_>>(), documents)
    };
    let (mask, documents) = of(DType::I64);
    assert_eq!(mask, [true, true, true, false, true, false, false, false]);
    assert_eq!(documents, [0, 0, 0, -4, 0, -2, -3, -4]);
    for dtype in [DType::I32, DType::I16, DType::I8] {
        assert_eq!(of(dtype), (mask.clone(), documents.clone()), "{dtype:?}");
    }
}

#[test]
fn rows_may_be_longer_than_the_type_of_their_counts_holds() {
    let device = Device::flex();
    let valid = |lengths: &RowLengths, seq| lengths.mask(seq).int().sum().into_scalar::<i64>();
    for dtype in [DType::U8, DType::I8, DType::U16, DType::I16] {
        let ints = |value: i64| {
            Tensor::<1, Int>::from_data(TensorData::new(vec![value], [1]).convert_dtype(dtype), (&device, dtype))
        };
        let seq = if matches!(dtype, DType::U8 | DType::I8) { 300 } else { 70_000 };
        assert_eq!(valid(&RowLengths::tokens(ints(10)), seq), 10, "{dtype:?}");
        assert_eq!(valid(&RowLengths::blocks(ints(3), seq / 3), seq), seq as i64 / 3 * 3, "{dtype:?}");
        assert_eq!(valid(&RowLengths::blocks_of(ints(100), ints(3)), seq), 300, "{dtype:?}");
        let documents = ints(0).unsqueeze::<2>().expand([1, seq]);
        let documents = RowLengths::tokens(ints(10)).documents(documents).into_data().iter::<i64>().collect::<Vec<_>>();
        let own = |at: usize| if at < 10 { 0 } else { -1 - at as i64 };
        assert_eq!(documents, (0..seq).map(own).collect::<Vec<_>>(), "{dtype:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn attention_sees_valid_tokens_of_a_document_and_padding_sees_itself(
        batch in 1usize..4, seq in 1usize..8, seed in any::<u64>(), window in proptest::option::of(1usize..5),
    ) {
        let device = Device::flex();
        let attention = AttentionConfig::new(D, 1).with_window(window);
        let layer = init_seeded(seed % 97, &device, |device| attention.init(device));
        let (counts, documents) = (drawn(seed, batch, seq + 2), drawn(seed ^ 1, batch * seq, 2));
        let x = floats(seed ^ 2, [batch, seq, D]).mul_scalar(20.0);
        let lengths = RowLengths::tokens(ints(&counts));
        let masked = lengths.documents(ints(&documents).reshape([batch, seq]));
        let got = layer.forward(x.clone(), &AttentionContext::new(masked));
        let got: Vec<f32> = got.into_data().iter::<f32>().collect();
        let x: Vec<f32> = x.into_data().iter::<f32>().collect();
        let expected = by_hand(&x, &weights(&layer), seq, |row, i, j| {
            let valid = i < counts[row] && documents[row * seq + i] == documents[row * seq + j];
            j <= i && window.is_none_or(|window| i - j < window) && (i == j || valid)
        });
        for (place, (got, expected)) in got.iter().zip(expected).enumerate() {
            prop_assert!((f64::from(*got) - expected).abs() < 1e-4, "{place}: {got} {expected}, {counts:?}");
        }
    }
}

#[derive(Module, Debug)]
struct Part {
    block: Block,
}

impl Stage for Part {
    type Input = Tensor<3>;
    type Extra = Tensor<2, Int>;
    type Output = Tensor<3>;

    fn extras(&self) -> Vec<&'static str> {
        vec!["documents"]
    }

    fn forward(&self, x: Tensor<3>, documents: Tensor<2, Int>) -> Tensor<3> {
        self.block.forward(x, &documents.into()).0
    }
}

const STAGES: usize = 2;

fn part(stage: usize, device: &Device) -> Part {
    let config = BlockConfig::new(AttentionConfig::new(D, 2), 6, MixtureOfExpertsConfig::new(D, 3, 2));
    Part { block: init_seeded(7 + stage as u64, device, |device| config.init(BlockKind::Dense, device)) }
}

/// The squared error of each token.
fn errors(y: Tensor<3>, wanted: Tensor<3>) -> Tensor<2> {
    let [batch, seq, _] = y.dims();
    (y - wanted).square().sum_dim(2).reshape([batch, seq])
}

fn stage(at: &StageContext) -> StageBox {
    let part = part(at.index, &at.device);
    type Target = (Tensor<3>, (Tensor<1, Int>, Tensor<1, Int>));
    match at.is_last() {
        false => StageBox::new(part),
        true => StageBox::with_loss(part, |y: Tensor<3>, (wanted, (counts, block)): Target| -> Loss {
            RowLengths::blocks_of(counts, block).loss(errors(y, wanted))
        }),
    }
}

#[test]
fn a_batch_with_padding_trains_as_its_rows_do_one_by_one_without() {
    for seed in 0..6u64 {
        let (rows, seq) = (3 + seed as usize % 4, 3 + seed as usize);
        let block = drawn(seed, rows, 3).iter().map(|size| size + 1).collect::<Vec<_>>();
        let counts: Vec<usize> = drawn(seed + 50, rows, seq + 1).iter().zip(&block).map(|(n, b)| n / b).collect();
        let (x, wanted) = (floats(seed + 100, [rows, seq, D]), floats(seed + 200, [rows, seq, D]));
        let documents = ints(&drawn(seed + 300, rows * seq, 2)).reshape([rows, seq]);
        let lengths = RowLengths::blocks_of(ints(&counts), ints(&block));

        let builder = Pipeline::builder().schedule("1F1B", Size::new(STAGES, 3)).reduction(Reduction::Weighted);
        let builder = builder.accumulation(Accumulation::Ordered).devices(vec![Device::flex()]).stages(stage);
        let mut pipeline = builder.build().unwrap();
        let batch = Batch::new(x.clone()).extra("documents", lengths.documents(documents.clone()));
        let batch = batch.target((wanted.clone(), (ints(&counts), ints(&block))));
        let loss = pipeline.accumulate(batch).unwrap().loss;
        let read = |tensor: &burn_pipeline::payload::AnyTensor| tensor.to_data().unwrap().iter::<f32>().collect();
        let gradients = pipeline.take_gradients().unwrap().into_iter().flatten();
        let gradients: Vec<Vec<f32>> = gradients.map(|gradient| read(gradient.as_ref().unwrap())).collect();

        // Each row alone, cut to its valid tokens; the loss is their mean over all rows.
        let valid: Vec<usize> = counts.iter().zip(&block).map(|(n, b)| n * b).collect();
        let total: usize = valid.iter().sum();
        let device = Device::flex().autodiff();
        let model: Vec<Part> = (0..STAGES).map(|stage| part(stage, &device)).collect();
        let step = Reference::new(model).step(&[1], 0.1, None, |model, _| {
            let mut sum = Tensor::<1>::zeros([1], &device);
            for row in (0..rows).filter(|&row| valid[row] > 0) {
                let cut = |tensor: &Tensor<3>| tensor.clone().slice([row..row + 1, 0..valid[row]]).autodiff();
                let documents = documents.clone().slice([row..row + 1, 0..valid[row]]).autodiff();
                let y = model.iter().fold(cut(&x), |x, part| part.forward(x, documents.clone()));
                sum = sum + errors(y, cut(&wanted)).sum();
            }
            sum.div_scalar(total as f64)
        });
        assert!((loss - step.loss).abs() < 1e-5 * step.loss, "{seed}: {loss} {}", step.loss);
        assert_eq!(gradients.len(), step.gradients.len());
        for (got, expected) in gradients.iter().zip(&step.gradients) {
            let largest = expected.iter().fold(1e-6f32, |max, x| max.max(x.abs()));
            let off = got.iter().zip(expected).fold(0.0f32, |max, (a, b)| max.max((a - b).abs()));
            assert!(off < 2e-5 * largest, "{seed}: {off} of {largest}");
        }
    }
}

#[test]
fn counts_of_tokens_and_of_blocks_say_the_same() {
    let read = |lengths: RowLengths| lengths.mask(7).int().into_data().iter::<i64>().collect::<Vec<i64>>();
    let expected = |valid: [usize; 3]| -> Vec<i64> {
        valid.iter().flat_map(|&valid| (0..7).map(move |i| i64::from(i < valid))).collect()
    };
    assert_eq!(read(RowLengths::tokens(ints(&[0, 3, 9]))), expected([0, 3, 7]));
    assert_eq!(read(RowLengths::blocks(ints(&[0, 1, 2]), 3)), expected([0, 3, 6]));
    assert_eq!(read(RowLengths::blocks_of(ints(&[2, 1, 3]), ints(&[1, 5, 2]))), expected([2, 5, 6]));
    let slots = RowLengths::blocks(ints(&[1, 2, 0]), 3);
    assert_eq!(read(slots.shorter(RowLengths::tokens(ints(&[2, 9, 4])))), expected([2, 6, 0]));
}
