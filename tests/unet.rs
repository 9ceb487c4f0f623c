//! The U-Net of the examples, cut by hand: stages with skip edges of their own (`Builder::skip`). Images go down
//! through ever coarser levels and up again, and each level of the way down sends its image across to the way up.
//!
//! ```text
//! block      0 ──────────────────────────────► 4
//!              ╲ 1 ──────────────────────► 3 ╱
//!                  ╲──────► 2 ──────────╱
//! stage     0 0 │       1        │     2         2 levels, 5 blocks, 3 stages: one edge, 0 -> 2
//! ```
//!
//! Wherever the model is cut, a value between two blocks takes the shortest way: within one stage it is a variable,
//! to the next stage it is part of the ordinary message, and past that it is a skip edge of the pipeline
//! ([`ByHand::edges`]), sent once from the stage that computes it to the one that reads it.

use burn::module::Module;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{AvgPool2d, AvgPool2dConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use burn_pipeline::boundary;
use burn_pipeline::payload::Skips;
use burn_pipeline::stage::{Names, Stage, StageBox, init_seeded};
use burn_pipeline::train::StageContext;
use pipeline_examples::unet::UNetConfig;
use std::collections::BTreeMap;
use std::ops::Range;

/// The values that cross between stages.
#[derive(Debug)]
pub struct Signal {
    /// The image on its way `[batch, channels, side, side]`.
    pub x: Tensor<4>,
    /// The levels that the next stage reads, coarsest last.
    pub near: Vec<Tensor<4>>,
    /// The levels that later stages read, grouped by stage.
    pub far: Skips<Vec<Tensor<4>>>,
}
boundary!(struct Signal { x, near, far });

/// One block: down, bottom, or up.
#[derive(Module, Debug)]
struct Block {
    convolution: Conv2d,
    /// The convolution to one channel, in the last block.
    out: Option<Conv2d>,
}

/// A contiguous part of the model.
#[derive(Module, Debug)]
pub struct UNetPart {
    blocks: Vec<Block>,
    pool: AvgPool2d,
    levels: usize,
    /// The index of its first block.
    first: usize,
    /// The first block of every stage, and the number of blocks.
    #[module(skip)]
    bounds: Vec<usize>,
}

/// The examples' U-Net, cut by hand.
#[derive(Clone, Debug)]
pub struct ByHand(pub UNetConfig);

impl ByHand {
    /// The number of blocks of the whole model: down, bottom, up.
    pub fn blocks(&self) -> usize {
        2 * self.0.levels + 1
    }

    fn bounds(&self, at: &StageContext) -> Vec<usize> {
        let start = |index| StageContext { index, ..at.clone() }.layers(self.blocks()).start;
        (0..at.stages).map(start).chain([self.blocks()]).collect()
    }

    /// The skip edges that the model needs when it is cut into `stages` stages.
    pub fn edges(&self, stages: usize) -> Vec<(usize, usize)> {
        let at = StageContext {
            index: 0,
            stages,
            rank: 0,
            device: Device::default(),
            cut: None,
            group: Default::default(),
            replicas: Default::default(),
        };
        let bounds = self.bounds(&at);
        let edge = |level| (stage_of(&bounds, level), stage_of(&bounds, 2 * self.0.levels - level));
        let edges: std::collections::BTreeSet<_> =
            (0..self.0.levels).map(edge).filter(|(from, to)| to - from > 1).collect();
        edges.into_iter().collect()
    }

    /// The part of the model that a stage holds.
    pub fn part(&self, at: &StageContext) -> UNetPart {
        let blocks = at.layers(self.blocks());
        UNetPart {
            first: blocks.start,
            blocks: blocks.map(|number| self.block(number, &at.device)).collect(),
            pool: AvgPool2dConfig::new([2, 2]).init(),
            levels: self.0.levels,
            bounds: self.bounds(at),
        }
    }

    fn block(&self, number: usize, device: &Device) -> Block {
        let convolution = |layer, from, to, side| {
            let config = Conv2dConfig::new([from, to], [side, side]).with_padding(PaddingConfig2d::Same);
            init_seeded(self.0.seed * 1_000_003 + layer as u64, device, |device| config.init(device))
        };
        let from = match number {
            0 => 1,
            _ if number > self.0.levels => 2 * self.0.channels,
            _ => self.0.channels,
        };
        let is_last = number + 1 == self.blocks();
        Block {
            convolution: convolution(number, from, self.0.channels, 3),
            out: is_last.then(|| convolution(number + 1, self.0.channels, 1, 1)),
        }
    }

    /// A stage of the model, with the mean squared error on the last one.
    pub fn stage(&self, at: &StageContext) -> StageBox {
        let part = self.part(at);
        let names = Names::default().layers_from("blocks", part.first);
        let stage = if at.is_last() { StageBox::with_loss(part, squared_error) } else { StageBox::new(part) };
        stage.named(names)
    }
}

/// The mean squared error of an image.
pub fn squared_error(output: Signal, target: Tensor<4>) -> Tensor<1> {
    (output.x - target).square().mean()
}

/// A batch's images as the first stage's input.
pub fn picture(x: Tensor<4>) -> Signal {
    Signal { x, near: Vec::new(), far: Skips(Vec::new()) }
}

fn stage_of(bounds: &[usize], block: usize) -> usize {
    bounds.partition_point(|&start| start <= block) - 1
}

impl UNetPart {
    fn range(&self) -> Range<usize> {
        self.first..self.first + self.blocks.len()
    }

    fn index(&self) -> usize {
        stage_of(&self.bounds, self.first)
    }

    /// The block on the way up that reads a level.
    fn up(&self, level: usize) -> usize {
        2 * self.levels - level
    }

    /// The levels from earlier stages, by the stage that computed them, each in order.
    fn coming(&self) -> BTreeMap<usize, Vec<usize>> {
        let mut coming: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for level in 0..self.levels.min(self.first) {
            if self.range().contains(&self.up(level)) {
                coming.entry(stage_of(&self.bounds, level)).or_default().push(level);
            }
        }
        coming
    }

    /// The levels for later stages, by the stage that reads them, each in order.
    fn going(&self) -> BTreeMap<usize, Vec<usize>> {
        let mut going: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for level in self.range().filter(|&level| level < self.levels && !self.range().contains(&self.up(level))) {
            going.entry(stage_of(&self.bounds, self.up(level))).or_default().push(level);
        }
        going
    }
}

impl Stage for UNetPart {
    type Input = Signal;
    type Extra = ();
    type Output = Signal;

    fn forward(&self, input: Signal, (): ()) -> Signal {
        let (mut x, mut near, mut far) = (input.x, Some(input.near), input.far.0.into_iter());
        let mut across: BTreeMap<usize, Tensor<4>> = BTreeMap::new();
        for (from, levels) in self.coming() {
            let pictures = if from + 1 == self.index() { near.take() } else { far.next() };
            across.extend(levels.into_iter().zip(pictures.unwrap_or_default()));
        }
        for (number, block) in self.range().zip(&self.blocks) {
            if number > self.levels {
                let level = self.up(number);
                let other = across.remove(&level).expect("a level that was made on the way down");
                x = Tensor::cat(vec![doubled(x), other], 1);
            }
            x = relu(block.convolution.forward(x));
            if number < self.levels {
                across.insert(number, x.clone());
                x = self.pool.forward(x);
            }
            if let Some(out) = &block.out {
                x = out.forward(x);
            }
        }
        let (mut near, mut far) = (Vec::new(), Vec::new());
        for (to, levels) in self.going() {
            let pictures: Vec<Tensor<4>> = levels.iter().filter_map(|level| across.remove(level)).collect();
            if to == self.index() + 1 { near = pictures } else { far.push(pictures) }
        }
        Signal { x, near, far: Skips(far) }
    }
}

/// Doubles every pixel in both directions.
fn doubled(x: Tensor<4>) -> Tensor<4> {
    let [batch, channels, height, width] = x.dims();
    let wide = x.reshape([batch, channels, height, 1, width, 1]).expand([batch, channels, height, 2, width, 2]);
    wide.reshape([batch, channels, 2 * height, 2 * width])
}
