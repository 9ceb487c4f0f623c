//! The modules of the table: how each is built, and what the program does around its steps.

use crate::layers::{
    Annealed, Branch, Decoder, Dense, Heated, Kind, Layer, Noise, Part, Recurrent, Thawing, Translating, Translator,
    WIDTH,
};
use crate::map::Map;
use crate::masks::Masks;
use crate::numbers::Half;
use crate::plain::{Forward, squares};
use burn::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};
use burn::module::{Module, Param, ParamGroup, RunningState};
use burn::nn::{BatchNormConfig, DropoutConfig, GruConfig, Linear, LinearConfig, LstmConfig};
use burn::optim::{AdamWConfig, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Tensor};
use burn_pipeline::stage::{Names, Stage, StageBox, init_seeded};
use burn_pipeline::train::StageContext;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The layers of every model.
const LAYERS: usize = 4;

/// A module of the table.
pub(crate) trait Case: Clone + Send + Sync + 'static {
    type Model: Stage + Forward;

    /// Its name in the table.
    fn name(&self) -> &'static str;

    /// The part of the model that a stage holds.
    fn part(&self, at: &StageContext) -> Self::Model;

    /// The optimizer of a stage.
    fn optimizer(&self) -> ModuleOptimizer {
        AdamWConfig::new().init()
    }

    /// The learning rate of a step.
    fn learning_rate(&self, _step: usize) -> ModuleLearningRate {
        1e-2.into()
    }

    /// Runs before a step, in the user's program.
    fn before(&self, _step: usize) {}

    /// The element types of a training in mixed precision.
    fn half(&self) -> Option<Half> {
        None
    }

    /// Returns true for parameters that stay f32 beside half-precision ones.
    fn keeps(&self) -> fn(&str) -> bool {
        |_| false
    }

    /// The dropout masks of its layers, if any.
    fn masks(&self) -> &[Masks] {
        &[]
    }

    /// The stage that holds the part.
    fn stage(&self, at: &StageContext) -> StageBox {
        let (part, first) = (self.part(at), at.layers(LAYERS).start);
        let stage = match at.is_last() {
            true => StageBox::with_loss(part, Self::Model::loss),
            false => StageBox::new(part),
        };
        stage.named(Names::default().layers_from("layers", first))
    }
}

/// A stack of equal layers.
#[derive(Clone)]
pub(crate) struct Stacked {
    name: &'static str,
    kind: fn(&Stacked, usize, &StageContext) -> Kind,
    masks: Vec<Masks>,
    heat: Arc<AtomicU64>,
    groups: bool,
    /// True if its kind stays f32 beside other types: it has running statistics, or Burn computes it in f32 alone.
    stays: bool,
}

fn linear(seed: usize, device: &Device) -> Linear {
    init_seeded(seed as u64, device, |device| LinearConfig::new(WIDTH, WIDTH).init(device))
}

impl Stacked {
    fn new(name: &'static str, kind: fn(&Stacked, usize, &StageContext) -> Kind) -> Self {
        Self { name, kind, masks: Vec::new(), heat: Arc::default(), groups: false, stays: false }
    }

    /// All cases that are one stack.
    pub(crate) fn all() -> Vec<Self> {
        vec![
            Self {
                stays: true,
                ..Self::new("`BatchNorm`", |_, _, at| Kind::Norm(BatchNormConfig::new(WIDTH).init(&at.device)))
            },
            Self {
                stays: true,
                ..Self::new("`RunningState` of one's own", |_, _, at| {
                    Kind::Tally(RunningState::new(Tensor::zeros([1], &at.device)))
                })
            },
            Self {
                masks: (0..LAYERS).map(|_| Masks::default()).collect(),
                ..Self::new("dropout, with a seed", |case, layer, at| {
                    let dropout = DropoutConfig::new(0.4).init();
                    Kind::Noise(Noise { dropout, masks: case.masks[layer].clone(), group: at.group.clone() })
                })
            },
            Self::new("field changed in `after_step`", |_, _, _| Kind::Annealed(Annealed { temperature: 2.0 })),
            Self::new("parameter changed in `after_step`", |_, _, at| {
                Kind::Counting(Param::from_tensor(Tensor::full([1], 2.0, &at.device)).set_require_grad(false))
            }),
            Self::new("atomic read in `forward`", |case, _, _| Kind::Heated(Heated { heat: case.heat.clone() })),
            Self::new("branch on values", |_, _, _| Kind::Branch(Branch { threshold: 0.0 })),
            Self::new("frozen, later thawed", |_, layer, at| {
                let second = linear(10 + layer, &at.device).no_grad();
                Kind::Thawing(Thawing { second })
            }),
            Self {
                stays: true,
                ..Self::new("`Lstm` and `Gru`", |_, layer, at| {
                    Kind::Recurrent(init_seeded(20 + layer as u64, &at.device, |device| {
                        let lstm = LstmConfig::new(2, 2, true).init(device);
                        Recurrent { lstm, gru: GruConfig::new(2, 2, true).init(device) }
                    }))
                })
            },
            Self {
                groups: true,
                ..Self::new("optimizer parameter groups", |_, _, _| Kind::Dense(Dense { scale: 1.5 }))
            },
        ]
    }
}

impl Case for Stacked {
    type Model = Part;

    fn name(&self) -> &'static str {
        self.name
    }

    fn part(&self, at: &StageContext) -> Part {
        let layer =
            |layer| Layer { linear: Map::cut(linear(layer, &at.device), at), kind: (self.kind)(self, layer, at) };
        Part { layers: at.layers(LAYERS).map(layer).collect() }
    }

    fn keeps(&self) -> fn(&str) -> bool {
        if self.stays { |path| path.contains("kind") } else { |_| false }
    }

    fn optimizer(&self) -> ModuleOptimizer {
        let optimizer = AdamWConfig::new().init();
        match self.groups {
            true => optimizer.with_group(ParamGroup::from_predicate("layers.2."), SgdConfig::new().build(), None),
            false => optimizer,
        }
    }

    fn learning_rate(&self, _: usize) -> ModuleLearningRate {
        match self.groups {
            true => ModuleLrScheduler::new(1e-2).with_group(ParamGroup::from_predicate("layers.1."), 0.5).step(),
            false => 1e-2.into(),
        }
    }

    fn before(&self, step: usize) {
        self.heat.store((2.0 / (step + 1) as f64).to_bits(), Ordering::Relaxed);
    }

    fn masks(&self) -> &[Masks] {
        &self.masks
    }
}

impl Forward for Part {
    fn input(tensor: impl Fn(u64) -> Tensor<2>) -> Tensor<2> {
        tensor(0)
    }

    fn loss(output: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
        squares(output, target)
    }

    fn in_parts(mut self, parts: usize) -> Self {
        let layer = |Layer { linear, kind }| Layer { linear: linear.in_parts(parts), kind };
        self.layers = self.layers.into_iter().map(layer).collect();
        self
    }
}

/// An encoder, and a decoder that reads the encoder's output.
#[derive(Clone)]
pub(crate) struct Translation;

impl Case for Translation {
    type Model = Translator;

    fn name(&self) -> &'static str {
        "encoder and decoder, two tensors"
    }

    fn part(&self, at: &StageContext) -> Translator {
        let map = |seed| Map::cut(linear(seed, &at.device), at);
        let layer = |layer: usize| match layer < LAYERS / 2 {
            true => Translating::Encoder(map(layer)),
            false => Translating::Decoder(Decoder { own: map(layer), cross: map(10 + layer) }),
        };
        Translator { layers: at.layers(LAYERS).map(layer).collect() }
    }
}

impl Forward for Translator {
    fn input(tensor: impl Fn(u64) -> Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        (tensor(0), tensor(100))
    }

    fn loss((_, output): (Tensor<2>, Tensor<2>), target: Tensor<2>) -> Tensor<1> {
        squares(output, target)
    }

    fn in_parts(mut self, parts: usize) -> Self {
        let layer = |layer| match layer {
            Translating::Encoder(map) => Translating::Encoder(map.in_parts(parts)),
            Translating::Decoder(Decoder { own, cross }) => {
                Translating::Decoder(Decoder { own: own.in_parts(parts), cross: cross.in_parts(parts) })
            }
        };
        self.layers = self.layers.into_iter().map(layer).collect();
        self
    }
}
