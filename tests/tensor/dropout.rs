//! Dropout in a tensor-parallel group drops what the plain loop drops, whatever is cut: heads, hidden features, the
//! sequence.
//!
//! The plain loop draws its masks from a separate generator for each stage and microbatch, and multiplies by them.

use crate::measured::Nothing;
use crate::model::weights;
use crate::parity::{ENGINES, Trained, assert_close};
use crate::plain::future;
use burn::module::Module;
use burn::nn::attention::{MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::{Dropout, DropoutConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::activation::{gelu, softmax};
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use burn_pipeline::nn::{ColumnLinear, GroupDropout, RowLinear, SelfAttention};
use burn_pipeline::stage::{SplitBackward, Stage, StageBox};
use burn_pipeline::tensor_parallel::{Cut, TensorGroup};
use burn_pipeline::train::GroupSizes;
use burn_pipeline::{Batch, Builder, Pipeline, Size, StageContext, boundary, init_seeded};
use pipeline_tests::reference::Reference;
use proptest::prelude::{ProptestConfig, proptest};
use rand::SeedableRng;
use rand::rngs::StdRng;

const SEED: u64 = 11;
const RATE: f64 = 0.2;
const CLIP: f64 = 0.1;
const SAMPLES: usize = 8;
const INIT: Initializer = Initializer::Normal { mean: 0.0, std: 0.4 };

/// The drop probabilities of attention weights, hidden features, and additions to the residual stream.
const DROPS: [f64; 3] = [0.3, 0.4, 0.2];

#[derive(Clone, Copy, Debug)]
struct Sizes {
    width: usize,
    heads: usize,
    hidden: usize,
    seq: usize,
    blocks: usize,
    /// True if hidden states are cut along the sequence between layers.
    sequence: bool,
}

const SMALL: Sizes = Sizes { width: 8, heads: 4, hidden: 12, seq: 4, blocks: 4, sequence: false };

#[derive(Module, Debug)]
struct Block {
    norm_attention: LayerNorm,
    attention: MultiHeadAttention,
    norm_feed: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Block {
    fn of(sizes: Sizes, place: usize, device: &Device) -> Self {
        let Sizes { width, heads, hidden, .. } = sizes;
        init_seeded(place as u64, device, |device| Self {
            norm_attention: LayerNormConfig::new(width).init(device),
            attention: MultiHeadAttentionConfig::new(width, heads)
                .with_dropout(DROPS[0])
                .with_initializer(INIT)
                .init(device),
            norm_feed: LayerNormConfig::new(width).init(device),
            up: LinearConfig::new(width, hidden).with_initializer(INIT).init(device),
            down: LinearConfig::new(hidden, width).with_initializer(INIT).init(device),
        })
    }

    /// The forward on one device, with masks drawn from this generator.
    fn plain(&self, x: Tensor<3>, generator: &mut StdRng) -> Tensor<3> {
        let [batch, seq, width] = x.dims();
        let layer = &self.attention;
        let normal = self.norm_attention.forward(x.clone());
        let heads = |linear: &Linear| {
            linear.forward(normal.clone()).reshape([batch, seq, layer.n_heads, layer.d_k]).swap_dims(1, 2)
        };
        let (query, key, value) = (heads(&layer.query), heads(&layer.key), heads(&layer.value));
        let scores = query.matmul(key.transpose()) / (layer.d_k as f32).sqrt();
        let mask = future(batch, seq, &x.device()).unsqueeze_dim::<4>(1);
        let scores = softmax(scores.mask_fill(mask, layer.min_float), 3);
        let mixed = dropped(scores, DROPS[0], generator).matmul(value).swap_dims(1, 2).reshape([batch, seq, width]);
        let x = x + dropped(layer.output.forward(mixed), DROPS[2], generator);
        let hidden = dropped(gelu(self.up.forward(self.norm_feed.forward(x.clone()))), DROPS[1], generator);
        x + dropped(self.down.forward(hidden), DROPS[2], generator)
    }
}

fn dropped<const D: usize>(x: Tensor<D>, drop: f64, generator: &mut StdRng) -> Tensor<D> {
    let kept = TensorData::random::<f32, _, _>(x.shape(), Distribution::Bernoulli(1.0 - drop), generator);
    x.clone() * Tensor::<D>::from_data(kept, &x.device()) / (1.0 - drop)
}

/// A round of SplitMix64, which derives seeds from the batch's number, the stage and the microbatch.
fn mixed(seed: u64, number: usize) -> u64 {
    let mut z = seed.wrapping_add((number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn data(sizes: Sizes) -> (Tensor<3>, Tensor<3>) {
    let count = (SAMPLES * sizes.seq * sizes.width) as i64;
    let numbers = Tensor::<1, Int>::arange(0..count, &Device::flex()).float();
    let shaped = |x: Tensor<1>| x.reshape([SAMPLES, sizes.seq, sizes.width]);
    (shaped((numbers.clone() * 0.7).sin()), shaped((numbers * 0.3).cos()))
}

/// Two steps of the plain loop, drawing as if it had `stages` stages.
fn plain(sizes: Sizes, stages: usize) -> Trained {
    let device = Device::flex().autodiff();
    let model: Vec<Block> = (0..sizes.blocks).map(|place| Block::of(sizes, place, &device)).collect();
    let mut reference = Reference::resumed(model, SgdConfig::new().init());
    let (x, target) = data(sizes);
    let mut step = |step: usize| {
        let given = reference.step(&[2; 4], RATE, Some(CLIP), |model: &Vec<Block>, i| {
            let piece = |of: &Tensor<3>| of.clone().narrow(0, 2 * i, 2).autodiff();
            let y = model.chunks(sizes.blocks / stages).enumerate().fold(piece(&x), |x, (stage, blocks)| {
                let mut generator = StdRng::seed_from_u64(mixed(mixed(mixed(SEED, step), stage), i));
                blocks.iter().fold(x, |x, block| block.plain(x, &mut generator))
            });
            (y - piece(&target)).square().mean()
        });
        (given.loss, given.norm)
    };
    let steps = vec![step(0), step(1)];
    Trained { steps, weights: reference.weights() }
}

/// Hidden states, whole or cut along the sequence.
#[derive(Debug)]
enum Signal {
    Whole(Tensor<3>),
    Piece(Cut<3, 1>),
}

boundary!(
    enum Signal {
        Whole(a),
        Piece(a),
    }
);

#[derive(Module, Debug)]
struct GroupBlock {
    norm_attention: LayerNorm,
    attention: SelfAttention,
    norm_feed: LayerNorm,
    up: ColumnLinear,
    down: RowLinear,
}

#[derive(Module, Debug)]
struct Part {
    blocks: Vec<GroupBlock>,
    hidden: GroupDropout,
    residual: GroupDropout,
    #[module(skip)]
    group: TensorGroup,
    sequence: bool,
    is_last: bool,
}

impl Part {
    fn whole(&self, x: Tensor<3>) -> Tensor<3> {
        let [_, seq, _] = x.dims();
        let mask = future(1, seq, &x.device());
        self.blocks.iter().fold(x, |x, block| {
            let attended = block.attention.forward(block.norm_attention.forward(x.clone()), Some(mask.clone()));
            let x = x + self.residual.forward(attended);
            let hidden = self.hidden.forward_cut(gelu(block.up.forward(block.norm_feed.forward(x.clone()))), 2);
            x + self.residual.forward(block.down.forward(hidden))
        })
    }

    fn pieces(&self, x: Tensor<3>) -> Tensor<3> {
        let (group, [_, piece, _]) = (&self.group, x.dims());
        let mask = future(1, piece * group.size(), &x.device());
        self.blocks.iter().fold(x, |x, block| {
            let normal = group.for_pieces(&block.norm_attention).forward(x.clone());
            let x = x + self.residual.forward_cut(block.attention.forward_cut(normal, Some(mask.clone())), 1);
            let normal = group.for_pieces(&block.norm_feed).forward(x.clone());
            let hidden = self.hidden.forward_cut(gelu(block.up.forward_cut(normal, 1)), 2);
            x + self.residual.forward_cut(block.down.forward_cut(hidden, 1), 1)
        })
    }
}

impl Stage for Part {
    type Input = Signal;
    type Extra = ();
    type Output = Signal;

    fn forward(&self, input: Signal, (): ()) -> Signal {
        let group = &self.group;
        if !self.sequence {
            let Signal::Whole(x) = input else { panic!("nothing is cut") };
            return Signal::Whole(self.whole(x));
        }
        let piece = match input {
            Signal::Whole(x) => group.scatter_to(x, 1),
            Signal::Piece(x) => x.piece(group),
        };
        let y = self.pieces(piece);
        if self.is_last { Signal::Whole(group.gather_from(y, 1)) } else { Signal::Piece(Cut::new(y, group)) }
    }
}

fn stage(sizes: Sizes, at: &StageContext) -> StageBox {
    let group = &at.group;
    let dropout = |drop| GroupDropout::cut(DropoutConfig::new(drop).init(), group);
    let block = |place| {
        let block = Block::of(sizes, place, &at.device);
        GroupBlock {
            norm_attention: block.norm_attention,
            attention: SelfAttention::cut(block.attention, group),
            norm_feed: block.norm_feed,
            up: ColumnLinear::cut(block.up, group),
            down: RowLinear::cut(block.down, group),
        }
    };
    let part = Part {
        blocks: at.layers(sizes.blocks).map(block).collect(),
        hidden: dropout(DROPS[1]),
        residual: dropout(DROPS[2]),
        group: group.clone(),
        sequence: sizes.sequence,
        is_last: at.is_last(),
    };
    match at.is_last() {
        false => StageBox::new(part),
        true => StageBox::with_loss(part, |y: Signal, target: Tensor<3>| {
            let Signal::Whole(y) = y else { panic!("the last stage's output is whole") };
            (y - target).square().mean()
        }),
    }
}

fn builder(sizes: Sizes, (schedule, chunks): (&str, usize), groups: impl Into<GroupSizes>, ranks: usize) -> Builder {
    Pipeline::builder()
        .schedule(schedule, Size { ranks, chunks, microbatches: 4 })
        .devices(vec![Device::flex()])
        .stages(move |at| stage(sizes, at))
        .optimizer(|| SgdConfig::new().init())
        .tensor_parallel(groups)
        .clip_norm(CLIP)
}

fn batch(sizes: Sizes) -> Batch {
    let (x, target) = data(sizes);
    Batch::new(Signal::Whole(x)).target(target)
}

fn trained(sizes: Sizes, builder: Builder) -> Trained {
    let mut pipeline = builder.seed(SEED).build().unwrap();
    let mut step = || {
        let report = pipeline.step(batch(sizes), RATE).unwrap();
        (report.loss, report.gradient_norm.unwrap())
    };
    let steps = vec![step(), step()];
    Trained { steps, weights: weights(&mut pipeline) }
}

#[test]
fn groups_of_any_size_drop_what_the_plain_loop_drops() {
    for sequence in [false, true] {
        let sizes = Sizes { sequence, ..SMALL };
        let expected = plain(sizes, 2);
        let schedules: [(_, _, &[usize]); 2] = [(("1F1B", 1), 2, &[1, 2, 4]), (("ZBVZeroBubble", 2), 1, &[2])];
        for (schedule, ranks, all) in schedules {
            for &members in all {
                for (engine, split, compile) in ENGINES {
                    let builder = builder(sizes, schedule, members, ranks).split(split).compile(compile);
                    let place = format!("{schedule:?}, {members} members, {engine}, in pieces: {sequence}");
                    assert_close(&trained(sizes, builder), &expected, &place);
                }
            }
        }
    }
}

#[test]
fn recomputed_stages_of_groups_of_different_sizes_drop_what_the_plain_loop_drops() {
    for sequence in [false, true] {
        let sizes = Sizes { sequence, ..SMALL };
        let expected = plain(sizes, 2);
        for (groups, split) in [([1, 2], SplitBackward::Eager), ([2, 4], SplitBackward::Auto)] {
            let builder = builder(sizes, ("1F1B", 1), groups, 2).split(split);
            let builder = builder.stages(move |at| stage(sizes, at).recomputed(at.is_first()));
            assert_close(&trained(sizes, builder), &expected, &format!("{groups:?}, {split:?}, in pieces: {sequence}"));
        }
    }
}

#[test]
fn replicas_of_groups_drop_what_the_plain_loop_drops() {
    let expected = plain(SMALL, 1);
    let builder = builder(SMALL, ("1F1B", 1), 2, 1).schedule("1F1B", Size::new(1, 2)).data_parallel(2);
    assert_close(&trained(SMALL, builder), &expected, "two replicas");
}

#[test]
fn an_evaluation_drops_nothing() {
    let loss = |members, seed| {
        let mut pipeline = builder(SMALL, ("1F1B", 1), members, 1).seed(seed).build().unwrap();
        pipeline.eval(batch(SMALL)).unwrap().loss.unwrap()
    };
    let (one, two) = (loss(1, 3), loss(2, 4));
    assert!((one - two).abs() < 1e-5 * one, "{two} for {one}");
}

#[test]
fn draws_without_a_seed_are_refused_in_a_group() {
    for (_, split, _) in ENGINES {
        let mut pipeline = builder(SMALL, ("1F1B", 1), 2, 1).split(split).build().unwrap();
        let error = pipeline.step(batch(SMALL), RATE).unwrap_err().to_string();
        assert!(error.contains("draws without a seed") && error.contains("`Builder::seed`"), "{error}");
    }
}

#[test]
fn stages_that_drop_are_measured_with_the_seed_that_they_need() {
    for (_, split, compile) in ENGINES {
        let measured = |builder: Builder| {
            let builder = builder.split(split).compile(compile);
            let (x, target) = data(SMALL);
            builder.measure_memory(Batch::new(Signal::Whole(x)).target(target), &Nothing)
        };
        assert_eq!(measured(builder(SMALL, ("1F1B", 1), 2, 2).seed(SEED)).unwrap().stages().len(), 2);
        let error = measured(builder(SMALL, ("1F1B", 1), 2, 2)).unwrap_err().to_string();
        assert!(error.contains("draws without a seed"), "{error}");
    }
}

/// Burn's own dropout, which does not support pieces.
#[derive(Module, Debug)]
struct Ordinary {
    up: ColumnLinear,
    dropout: Dropout,
    down: RowLinear,
    reads: bool,
}

impl Stage for Ordinary {
    type Input = Tensor<3>;
    type Extra = ();
    type Output = Tensor<3>;

    fn forward(&self, x: Tensor<3>, (): ()) -> Tensor<3> {
        let hidden = self.dropout.forward(self.up.forward(x.clone()));
        let factor = if self.reads { x.mean().into_scalar::<f32>() } else { 1.0 };
        self.down.forward(hidden) * factor
    }
}

#[test]
fn draws_of_other_layers_are_refused_in_a_group_and_so_are_those_that_cannot_be_known() {
    let past = "draws otherwise than by `nn::GroupDropout`";
    for (reads, seed, what) in [(false, Some(1), past), (false, None, past), (true, Some(1), "cannot be captured")] {
        for split in [SplitBackward::Eager, SplitBackward::Auto] {
            let builder = builder(SMALL, ("1F1B", 1), 2, 1).split(split);
            let builder = seed.into_iter().fold(builder, Builder::seed).stages(move |at| {
                let linear = |from, to| LinearConfig::new(from, to).init(&at.device);
                let (up, down) = (ColumnLinear::cut(linear(8, 4), &at.group), RowLinear::cut(linear(4, 8), &at.group));
                let stage = Ordinary { up, dropout: DropoutConfig::new(0.5).init(), down, reads };
                StageBox::with_loss(stage, |y: Tensor<3>, target: Tensor<3>| (y - target).square().mean())
            });
            let (x, target) = data(SMALL);
            let error = builder.build().unwrap().step(Batch::new(x).target(target), RATE).unwrap_err().to_string();
            assert!(error.contains(what), "{split:?}: {error}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_size_that_can_be_cut_drops_what_the_plain_loop_drops(
        members in 2usize..4, heads in 1usize..3, head in 2usize..4, hidden in 1usize..4, seq in 1usize..4,
        engine in 0usize..3, sequence in proptest::bool::ANY
    ) {
        let heads = heads * members;
        let (width, hidden, seq) = (heads * head, 2 * hidden * members, seq * members);
        let sizes = Sizes { width, heads, hidden, seq, blocks: 1, sequence };
        let (_, split, compile) = ENGINES[engine];
        let builder = builder(sizes, ("1F1B", 1), members, 1).split(split).compile(compile);
        assert_close(&trained(sizes, builder), &plain(sizes, 1), &format!("{sizes:?} on {members}, {split:?}"));
    }
}
