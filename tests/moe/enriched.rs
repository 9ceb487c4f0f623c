//! The model with every optional part: enrichments of the first stage, windows, layers without rotary positions,
//! and a relation bias shared by all stages; and those parts alone.

use crate::cases::{Text, builder, distance, noise, pipelined, plain, rich};
use crate::parity::{assert_close, assert_every_schedule};
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::payload::Boundary;
use burn_pipeline::schedule::{Size, by_name};
use burn_pipeline::stage::{SplitBackward, Stage, init_seeded};
use burn_pipeline::train::StageContext;
use burn_pipeline_moe::extras::{StageExtras, StageExtrasError};
use burn_pipeline_moe::layers::{Attention, AttentionConfig, AttentionContext};
use pipeline_examples::moe::gpt::MoeGptConfig;
use pipeline_examples::moe::signal::{DOCUMENTS, PLATFORM, RELATIONS, STRUCTURE, TOKENS};

#[test]
fn every_schedule_equals_the_model_on_one_device() {
    assert_every_schedule(&rich().with_ahead("E".to_owned()), &[(1, 3, true), (3, 2, false)]);
}

#[test]
fn virtual_stages_and_captured_ones_read_the_side_data_of_their_microbatch() {
    let config = rich();
    for (name, ranks, chunks, split) in [
        ("Interleaved1F1B", 2, 4, SplitBackward::Eager),
        ("ZBVZeroBubble", 4, 2, SplitBackward::Eager),
        ("ZBVZeroBubble", 2, 2, SplitBackward::Captured),
        ("InterleavedZeroBubble", 2, 2, SplitBackward::Captured),
    ] {
        let size = Size { ranks, chunks, microbatches: 8 };
        let builder = builder(by_name(name).unwrap().as_ref(), size, &config, |part, _| part).split(split);
        let expected = plain(&config, &[9, 8], 8);
        assert_close(
            &distance(&config, &pipelined(builder, &[9, 8], &config), &expected),
            &format!("{name}, {split:?}"),
        );
    }
}

#[test]
fn each_part_makes_a_difference() {
    let loss = |config: &MoeGptConfig| plain(config, &[4], 1).loss;
    let whole = loss(&rich());
    for (name, without) in [
        ("n-grams", rich().with_ngram_buckets(0)),
        ("structure", rich().with_structures(0)),
        ("platform", rich().with_platforms(0)),
        ("squash", rich().with_squash(false)),
        ("windows", rich().with_windows(Vec::new())),
        ("relations", rich().with_relations(0)),
        ("the embeddings' scale", rich().with_scale_embeddings(false)),
    ] {
        assert!((loss(&without) - whole).abs() > 1e-7, "{name} changes nothing");
    }
    // Initial queries and keys are small, so positions hardly change the loss but do change its gradients.
    let gradient = |config: MoeGptConfig| {
        let mut gradients = plain(&config, &[4], 1).gradients.into_iter();
        let of_block =
            |(name, _): &(String, _)| name.starts_with("blocks.1.") && name.contains("query_key_value.weight");
        gradients.find(of_block).unwrap().1
    };
    let (without, with) = (gradient(rich()), gradient(rich().with_without_rotary(Vec::new())));
    let differs = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-2 * a.abs().max(b.abs());
    assert!(without.iter().zip(&with).any(differs), "rotary positions make no difference");
}

#[test]
fn a_stage_reads_the_side_data_that_its_layers_need() {
    let config = rich().with_ahead("D".to_owned());
    let reads = |index| {
        let at = StageContext {
            index,
            stages: 3,
            rank: 0,
            device: Device::flex(),
            cut: None,
            group: Default::default(),
            replicas: Default::default(),
        };
        config.part(&at).unwrap().extras().split_off(1)
    };
    assert_eq!(reads(0), [DOCUMENTS, RELATIONS, STRUCTURE, PLATFORM]);
    assert_eq!(reads(1), [DOCUMENTS, RELATIONS]);
    assert_eq!(reads(2), [DOCUMENTS, RELATIONS, TOKENS]);
    // A batch that lacks an input of a stage is refused before anything runs.
    let builder = builder(by_name("1F1B").unwrap().as_ref(), Size::new(2, 2), &config, |part, _| part);
    let mut pipeline = builder.build().unwrap();
    let bare = burn_pipeline::stage::Batch::new(pipeline_examples::moe::signal::MoeSignal::Tokens(Tensor::zeros(
        [2, crate::cases::SEQ],
        &Device::flex(),
    )));
    let bare = bare.target(Tensor::<2, Int>::zeros([2, crate::cases::SEQ], &Device::flex()));
    let error = pipeline.accumulate(bare).unwrap_err().to_string();
    assert!(error.contains("`documents`"), "{error}");
    pipeline.accumulate(Text::new(1, 2).batch()).unwrap();
}

#[test]
fn side_data_that_is_not_there_or_is_another_is_named() {
    let ids = Tensor::<2, Int>::zeros([1, 2], &Device::flex());
    let mut side = StageExtras::from_payload((ids, (0.5, "de".to_owned())).into_payload()).unwrap();
    let error = side.clone().take::<Tensor<2>>("mask").unwrap_err();
    assert_eq!(
        error.to_string(),
        "the extra `mask` has a different type than the stage reads: \
         tensor 0 of the payload is int of rank 2, but float of rank 2 is expected; \
         the remaining extras are (int I32 [1, 2]; f64 0.5; string \"de\"); check the batch"
    );
    assert!(side.take::<Tensor<2, Int>>("ids").is_ok());
    assert!(side.clone().take::<i64>("heat").unwrap_err().to_string().contains("a plain integer (i64)"));
    assert_eq!(side.take("heat"), Ok(0.5));
    assert_eq!(side.take("language"), Ok("de".to_owned()));
    assert_eq!(side.take::<bool>("more"), Err(StageExtrasError::Missing { name: "more".to_owned() }));
}

const D: usize = 8;

fn attention(rotary: bool) -> Attention {
    init_seeded(1, &Device::flex(), |device| AttentionConfig::new(D, 2).with_rotary(rotary).init(device))
}

fn run(attention: &Attention, context: &AttentionContext) -> Vec<f32> {
    let [batch, seq] = context.documents.dims();
    let x = Tensor::<1>::from_floats(&*noise(4, batch * seq * D), &Device::flex()).reshape([batch, seq, D]);
    // Larger than initial values, so that attention is not uniform.
    attention.forward(x.mul_scalar(30.0), context).into_data().iter::<f32>().collect()
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).fold(0.0, |max, (a, b)| max.max((a - b).abs()))
}

#[test]
fn rotary_attention_depends_on_distances_alone_and_without_it_on_no_position() {
    let context = AttentionContext::new(Tensor::zeros([2, 6], &Device::flex()));
    let shifted = AttentionContext { positions: context.positions.clone() + 11, ..context.clone() };
    let spread = AttentionContext { positions: context.positions.clone() * 3, ..context.clone() };
    let (rotary, plain) = (attention(true), attention(false));
    assert!(difference(&run(&rotary, &context), &run(&rotary, &shifted)) < 1e-5);
    assert!(difference(&run(&rotary, &context), &run(&rotary, &spread)) > 1e-3);
    assert_eq!(run(&plain, &context), run(&plain, &spread));
    assert!(difference(&run(&rotary, &context), &run(&plain, &context)) > 1e-3);
}

#[test]
fn rotary_attention_is_the_formula_with_complex_numbers() {
    // One head of two pairs: the score of tokens i and j is the real part of q_i * conj(k_j) * e^((i - j) * rate).
    let device = Device::flex();
    let x = noise(7, 3 * 4);
    let layer = init_seeded(2, &device, |device| AttentionConfig::new(4, 1).with_rotary(true).init(device));
    let weights = pipeline_tests::reference::weights(&layer);
    let row = |i: usize, from: usize| -> Vec<f64> {
        let product = |c: usize| -> f64 {
            (0..4).map(|r| x[i * 4 + r] as f64 * 30.0 * weights[0][r * 12 + from + c] as f64).sum()
        };
        (0..4).map(|c| product(c) + weights[1][from + c] as f64).collect()
    };
    let score = |i: usize, j: usize| {
        let (q, k) = (row(i, 0), row(j, 4));
        let pair = |p: usize| {
            let angle = (i as f64 - j as f64) * 10_000f64.powf(-(p as f64) / 2.0);
            let (re, im) = (q[p] * k[p] + q[p + 2] * k[p + 2], q[p + 2] * k[p] - q[p] * k[p + 2]);
            re * angle.cos() - im * angle.sin()
        };
        (pair(0) + pair(1)) / 2.0
    };
    let context = AttentionContext::new(Tensor::zeros([1, 3], &device));
    let input = Tensor::<1>::from_floats(&*x, &device).reshape([1, 3, 4]).mul_scalar(30.0);
    let got: Vec<f32> = layer.forward(input, &context).into_data().iter::<f32>().collect();
    for i in 0..3 {
        let exp: Vec<f64> = (0..=i).map(|j| score(i, j).exp()).collect();
        let mixed: Vec<f64> =
            (0..4).map(|c| (0..=i).map(|j| exp[j] * row(j, 8)[c]).sum::<f64>() / exp.iter().sum::<f64>()).collect();
        for c in 0..4 {
            let product: f64 = (0..4).map(|r| mixed[r] * weights[2][r * 4 + c] as f64).sum();
            let expected = product + weights[3][c] as f64;
            assert!((got[i * 4 + c] as f64 - expected).abs() < 1e-5, "token {i}: {} {expected}", got[i * 4 + c]);
        }
    }
}

#[test]
fn a_bias_moves_attention_and_chosen_tokens_keep_theirs() {
    let device = Device::flex();
    let layer = attention(true);
    let documents = Tensor::<2, Int>::from_ints([[0, 0, 0, 1, 1]], &device);
    let bias = Tensor::<1>::from_floats(&*noise(8, 2 * 25), &device).reshape([1, 2, 5, 5]).mul_scalar(3.0);
    let context = AttentionContext::new(documents).with_bias(Some(bias.clone()));
    assert!(difference(&run(&layer, &context), &run(&layer, &context.clone().with_bias(None))) > 1e-3);
    let places = [0usize, 2, 3];
    let of = context.of(Tensor::from_ints([[0, 2, 3]], &device));
    let ints = |t: &Tensor<2, Int>| t.clone().into_data().iter::<i64>().collect::<Vec<i64>>();
    assert_eq!((ints(&of.documents), ints(&of.positions)), (vec![0, 0, 1], vec![0, 2, 3]));
    let (all, picked): (Vec<f32>, Vec<f32>) =
        (bias.into_data().iter::<f32>().collect(), of.bias.unwrap().into_data().iter::<f32>().collect());
    for head in 0..2 {
        for (i, &from) in places.iter().enumerate() {
            for (j, &to) in places.iter().enumerate() {
                assert_eq!(picked[(head * 3 + i) * 3 + j], all[(head * 5 + from) * 5 + to]);
            }
        }
    }
}
