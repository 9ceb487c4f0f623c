//! The same decoder as tensor-parallel stages.

use super::plain::{Config, SMALL, future};
use burn::module::{Module, Param};
use burn::nn::LayerNorm;
use burn::optim::SgdConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::nn::{ColumnLinear, GatedFeedForward, SelfAttention, VocabEmbedding, vocab_cross_entropy};
use burn_pipeline::payload::AnyTensor;
use burn_pipeline::stage::{Names, Stage, StageBox};
use burn_pipeline::tensor_parallel::{Cut, TensorGroup};
use burn_pipeline::train::GroupSizes;
use burn_pipeline::{Batch, Builder, Pipeline, Size, StageContext, boundary};

/// The values that cross a boundary. Hidden states are whole, or cut along the sequence.
#[derive(Debug)]
pub(crate) enum Signal {
    Tokens(Tensor<2, Int>),
    Hidden(Tensor<3>),
    Piece(Cut<3, 1>),
}

boundary!(
    enum Signal {
        Tokens(a),
        Hidden(a),
        Piece(a),
    }
);

#[derive(Module, Debug)]
struct Embed {
    token: VocabEmbedding,
    position: Param<Tensor<2>>,
}

#[derive(Module, Debug)]
struct Block {
    norm_attention: LayerNorm,
    attention: SelfAttention,
    norm_feed: LayerNorm,
    feed: GatedFeedForward,
}

#[derive(Module, Debug)]
struct Head {
    norm: LayerNorm,
    scores: ColumnLinear,
}

#[derive(Module, Debug)]
pub(crate) struct Part {
    embed: Option<Embed>,
    blocks: Vec<Block>,
    head: Option<Head>,
    #[module(skip)]
    group: TensorGroup,
    /// True if norms and sums between layers are computed on pieces of the sequence.
    sequence: bool,
}

impl Part {
    /// Like `forward`, with each rank's piece of the sequence between layers.
    fn forward_pieces(&self, input: Signal) -> Signal {
        let group = &self.group;
        let x = match (input, &self.embed) {
            (Signal::Tokens(tokens), Some(embed)) => {
                let position = group.scatter_to(embed.position.val(), 0);
                embed.token.forward_cut(tokens) + position.unsqueeze::<3>()
            }
            (Signal::Piece(x), None) => x.piece(group),
            (other, _) => panic!("the first stage takes tokens, and no other: {other:?}"),
        };
        let [_, piece, _] = x.dims();
        let mask = future(1, piece * group.size(), &x.device());
        let x = self.blocks.iter().fold(x, |x, block| {
            let normal = group.for_pieces(&block.norm_attention).forward(x.clone());
            let x = x + block.attention.forward_cut(normal, Some(mask.clone()));
            let normal = group.for_pieces(&block.norm_feed).forward(x.clone());
            x + block.feed.forward_cut(normal, 1)
        });
        match &self.head {
            Some(head) => Signal::Hidden(head.scores.forward_cut(group.for_pieces(&head.norm).forward(x), 1)),
            None => Signal::Piece(Cut::new(x, group)),
        }
    }
}

impl Stage for Part {
    type Input = Signal;
    type Extra = ();
    type Output = Signal;

    fn forward(&self, input: Signal, (): ()) -> Signal {
        if self.sequence {
            return self.forward_pieces(input);
        }
        let x = match (input, &self.embed) {
            (Signal::Tokens(tokens), Some(embed)) => {
                embed.token.forward(tokens) + embed.position.val().unsqueeze::<3>()
            }
            (Signal::Hidden(x), None) => x,
            (other, _) => panic!("the first stage takes tokens, and no other: {other:?}"),
        };
        let [_, seq, _] = x.dims();
        let mask = future(1, seq, &x.device());
        let x = self.blocks.iter().fold(x, |x, block| {
            let x = x.clone() + block.attention.forward(block.norm_attention.forward(x), Some(mask.clone()));
            x.clone() + block.feed.forward(block.norm_feed.forward(x))
        });
        Signal::Hidden(match &self.head {
            Some(head) => head.scores.forward(head.norm.forward(x)),
            None => x,
        })
    }
}

/// A stage. Every rank but a group's first draws other initial values, which must not be used.
pub(crate) fn stage(config: Config, at: &StageContext) -> StageBox {
    let (group, device) = (&at.group, &at.device);
    let config = Config { seed: config.seed + 1000 * group.member() as u64, ..config };
    let embed = at.is_first().then(|| config.embed(device));
    let embed = embed.map(|e| Embed { token: VocabEmbedding::cut(e.token, group), position: e.position });
    let blocks = at.layers(config.blocks).map(|place| config.block(place, device));
    let blocks = blocks.map(|b| Block {
        norm_attention: b.norm_attention,
        attention: SelfAttention::cut(b.attention, group),
        norm_feed: b.norm_feed,
        feed: GatedFeedForward::cut(b.feed.gated, b.feed.down, group),
    });
    let blocks = blocks.collect();
    let head = at.is_last().then(|| config.head(device));
    let head = head.map(|h| Head { norm: h.norm, scores: ColumnLinear::cut(h.scores, group) });
    let part = Part { embed, blocks, head, group: group.clone(), sequence: config.sequence };
    let group = group.clone();
    let names = Names::default().layers_from("blocks", at.layers(config.blocks).start);
    let stage = match at.is_last() {
        false => StageBox::new(part),
        true => StageBox::with_loss(part, move |output: Signal, target: Tensor<2, Int>| {
            let Signal::Hidden(scores) = output else { panic!("a last stage gives scores") };
            let [batch, seq, vocab] = scores.dims();
            vocab_cross_entropy(scores.reshape([batch * seq, vocab]), target.reshape([batch * seq]), &group)
        }),
    };
    stage.named(names)
}

/// Pipeline ranks, replicas and members.
pub(crate) type Grid = (usize, usize, usize);

pub(crate) fn builder_of(config: Config, schedule: (&str, usize), (ranks, replicas, members): Grid) -> Builder {
    builder_with(config, schedule, (ranks, replicas), members)
}

/// Like `builder_of`, with one group size for all pipeline ranks or one for each.
pub(crate) fn builder_with(
    config: Config,
    schedule: (&str, usize),
    (ranks, replicas): (usize, usize),
    sizes: impl Into<GroupSizes>,
) -> Builder {
    Pipeline::builder()
        .schedule(schedule.0, Size { ranks, chunks: schedule.1, microbatches: 4 / replicas })
        .devices(vec![Device::flex()])
        .stages(move |at| stage(config, at))
        .optimizer(|| SgdConfig::new().init())
        .data_parallel(replicas)
        .tensor_parallel(sizes)
}

pub(crate) fn builder(schedule: (&str, usize), grid: Grid) -> Builder {
    builder_of(SMALL, schedule, grid)
}

pub(crate) fn batch(config: &Config, samples: usize) -> Batch {
    let (tokens, targets) = config.data(samples);
    Batch::new(Signal::Tokens(tokens)).target(targets)
}

pub(crate) fn read(tensor: &AnyTensor) -> Vec<f32> {
    tensor.to_data().unwrap().iter::<f32>().collect()
}

/// All weights of the model, whole, in model order.
pub(crate) fn weights(pipeline: &mut Pipeline) -> Vec<Vec<f32>> {
    pipeline.weights().unwrap().iter().flatten().map(read).collect()
}
