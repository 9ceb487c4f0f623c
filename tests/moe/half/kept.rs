//! Blocks of every kind with norms and routers kept in f32 beside half-precision layers.

use super::{HALVES, Rounded, apart, rounded, values};
use burn::module::{Module, ParamGroup};
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{DType, Device, FloatDType, Int, Tensor};
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{LOSS_SEED, LossScale, Names, Precision, SplitBackward, init_seeded};
use burn_pipeline::train::Builder;
use burn_pipeline::{Batch, Pipeline, Stage, StageBox, StageContext};
use burn_pipeline_moe::auxiliary::{AuxiliaryLosses, AuxiliaryWeights};
use burn_pipeline_moe::cache::LayerCache;
use burn_pipeline_moe::layers::{
    AttentionConfig, AttentionContext, Block, BlockConfig, BlockKind, FeedForwardOrExperts, MixtureOfExpertsConfig,
    MultiTokenPrediction,
};
use burn_pipeline_moe::router::{Capacity, Router, RouterConfig};
use pipeline_tests::device::device;
use pipeline_tests::noise::noise;

const WIDTH: usize = 8;
const HEADS: usize = 2;
const SEQ: usize = 6;
const SAMPLES: usize = 8;
const STEPS: usize = 4;
const KINDS: [BlockKind; 4] = [BlockKind::Experts, BlockKind::DenseDepths, BlockKind::ExpertsDepths, BlockKind::Dense];
/// The kind of the block of tokens ahead.
const AHEAD: BlockKind = BlockKind::Experts;
/// How much the routers' biases move. In bf16, 1 + 0.001 is 1.
const BIAS_RATE: f64 = 0.001;
/// The allowed difference of losses from those of f32: a rounded score may choose another expert or token.
const CLOSE: f64 = 1.0 / 32.0;

fn config() -> BlockConfig {
    // Nothing is dropped, and the stages can be captured.
    let mixture = MixtureOfExpertsConfig::new(WIDTH, 4, 4).with_capacity(Capacity::Factor(4.0)).with_expert_bias(true);
    BlockConfig::new(AttentionConfig::new(WIDTH, HEADS).with_rotary(true), 16, mixture)
}

/// On the first stage a matrix, on each some blocks and, on the last one, a module that predicts a token ahead.
#[derive(Module, Debug)]
struct Part {
    enter: Option<Linear>,
    blocks: Vec<Block>,
    ahead: Option<MultiTokenPrediction>,
    #[module(skip)]
    losses: AuxiliaryLosses,
}

impl Part {
    fn new(at: &StageContext) -> Self {
        let kinds: Vec<BlockKind> = KINDS.into_iter().chain([AHEAD]).collect();
        let weights = AuxiliaryWeights { load_balance: 0.1, router_z: 0.01, depth_router: 0.1 };
        let block = |layer: usize| {
            let block = init_seeded(layer as u64, &at.device, |device| config().init(KINDS[layer], device));
            biased(block.map(&mut Rounded::new(8.0, DType::F32, DType::F32)))
        };
        let enter = |device: &Device| LinearConfig::new(WIDTH, WIDTH).init(device);
        let ahead = |device: &Device| MultiTokenPrediction::new(&config(), AHEAD, device);
        Self {
            enter: at.is_first().then(|| init_seeded(20, &at.device, enter)),
            blocks: at.layers(KINDS.len()).map(block).collect(),
            ahead: at.is_last().then(|| init_seeded(9, &at.device, ahead)),
            losses: AuxiliaryLosses::new(weights, &kinds),
        }
    }
}

/// The block with all biases of its router at 1, where bf16 loses small steps.
fn biased(block: Block) -> Block {
    match block {
        Block::All(mut inner) => {
            if let FeedForwardOrExperts::Experts(mixture) = &mut inner.mix {
                let bias = mixture.router.bias.take();
                mixture.router.bias = bias.map(|bias| bias.map(|bias| bias.add_scalar(1.0)));
            }
            Block::All(inner)
        }
        Block::Some(depths) => Block::Some(depths),
    }
}

impl Stage for Part {
    type Input = Tensor<3>;
    type Extra = Tensor<1>;
    type Output = Tensor<3>;

    fn extras(&self) -> Vec<&'static str> {
        vec![LOSS_SEED]
    }

    fn forward(&self, x: Tensor<3>, seed: Tensor<1>) -> Tensor<3> {
        let [batch, seq, _] = x.dims();
        let x = match &self.enter {
            Some(enter) => enter.forward(x.cast(enter.weight.dtype())),
            None => x,
        };
        let own = x.dtype();
        // The bias of scores is f32, as an extra of the batch would be.
        let bias = Tensor::<1, Int>::arange(0..(HEADS * SEQ * SEQ) as i64, &x.device()).cast(FloatDType::F32).sin();
        let bias = bias.reshape([1, HEADS, SEQ, SEQ]).expand([batch, HEADS, SEQ, SEQ]);
        let context = AttentionContext::new(Tensor::zeros([batch, seq], &x.device())).with_bias(Some(bias));
        let token = x.clone().cast(DType::F32);
        let (mut y, mut left) = (x, Vec::new());
        for block in &self.blocks {
            let (next, auxiliary) = block.forward(y, &context);
            assert_eq!(next.dtype(), own, "hidden states keep their type");
            y = next;
            left.push(auxiliary);
        }
        if let Some(ahead) = &self.ahead {
            let (hidden, token) = (y.clone().narrow(1, 0, seq - 1), token.narrow(1, 1, seq - 1));
            let (hidden, auxiliary) = ahead.forward(hidden, token, &context.first(seq - 1));
            y = Tensor::cat(vec![y, hidden], 1);
            left.push(auxiliary);
        }
        self.losses.inject(y, &left, seed)
    }

    fn after_step(self, _: &[Vec<f64>]) -> Self {
        let moved = |block: Block| block.with_updated_bias(&[3.0, 1.0, 1.0, 3.0], BIAS_RATE);
        Self { blocks: self.blocks.into_iter().map(moved).collect(), ..self }
    }
}

/// Of each token, and of the one after it from the tokens ahead.
fn loss(y: Tensor<3>, target: Tensor<3>) -> Tensor<1> {
    let (y, [_, seq, _]) = (y.cast(DType::F32), target.dims());
    let ahead = y.clone().narrow(1, seq, seq - 1) - target.clone().narrow(1, 1, seq - 1);
    (y.narrow(1, 0, seq) - target).square().mean() + ahead.square().mean()
}

fn data(step: usize) -> [Tensor<3>; 2] {
    let values = |seed| noise(seed + step as u64, SAMPLES * SEQ * WIDTH);
    [1, 51].map(|seed| Tensor::<1>::from_floats(&*values(seed), &device()).reshape([SAMPLES, SEQ, WIDTH]))
}

/// The losses of some steps, and the routers' biases after them.
fn trained(schedule: &str, changed: impl FnOnce(Builder) -> Builder) -> (Vec<f64>, Vec<Vec<f64>>) {
    let builder = Pipeline::builder()
        .schedule(schedule, Size::new(2, 4))
        .devices(vec![device()])
        .optimizer(|| SgdConfig::new().init())
        .stages(|at: &StageContext| {
            let names = Names::default().layers_from("blocks", at.layers(KINDS.len()).start);
            let part = Part::new(at);
            let stage = if at.is_last() { StageBox::with_loss(part, loss) } else { StageBox::new(part) };
            stage.named(names)
        });
    let mut pipeline = changed(builder).build().unwrap();
    let step = |step| {
        let [x, target] = data(step);
        pipeline.step(Batch::new(x).target(target), 0.2).unwrap().loss
    };
    let losses = (0..STEPS).map(step).collect();
    let weights = pipeline.weights().unwrap();
    // Of four numbers, one for each expert: only biases of routers.
    let biases = weights.iter().flatten().filter(|weight| weight.shape().as_slice() == [4]);
    (losses, biases.map(|bias| bias.to_data().unwrap().iter::<f64>().collect()).collect())
}

fn precision(half: DType, kept: &[&'static str]) -> Precision {
    let rounded = if half == DType::BF16 { Precision::bf16() } else { Precision::f16() };
    let rounded = rounded.loss_scale(LossScale { initial: 1024.0, ..LossScale::default() });
    kept.iter().fold(rounded, |precision, &name| precision.keep(ParamGroup::from_predicate(name)))
}

#[test]
fn blocks_of_every_kind_train_with_norms_and_routers_kept_in_f32() {
    let (expected, biases) = trained("1F1B", |builder| builder);
    for (half, _) in HALVES {
        for kept in [&["norm"][..], &["router"], &["norm", "router"]] {
            let (got, moved) = trained("1F1B", |builder| builder.precision(precision(half, kept)));
            let off = apart(&got, &expected);
            println!("{half:?}, {kept:?}: {off:.1e} apart");
            assert!(off > 0.0 && off < CLOSE, "{half:?}, {kept:?}: {got:?} is not {expected:?}");
            // The masters move, whatever type the router computes in.
            assert_eq!(moved, biases, "{half:?}, {kept:?}");
        }
    }
}

#[test]
fn captured_and_compiled_blocks_train_with_norms_and_routers_kept_in_f32() {
    let (expected, _) = trained("1F1B", |builder| builder);
    for (half, _) in HALVES {
        for compiles in [false, true] {
            let engine = |builder: Builder| builder.split(SplitBackward::Captured).compile(compiles);
            let kept = precision(half, &["norm", "router"]);
            let (got, _) = trained("ZBH1", |builder| engine(builder).precision(kept));
            let off = apart(&got, &expected);
            assert!(off > 0.0 && off < CLOSE, "{half:?}, compiled {compiles}: {got:?} is not {expected:?}");
        }
    }
}

#[test]
fn a_block_whose_norms_and_router_are_kept_in_f32_generates_with_a_cache() {
    let device = Device::flex();
    let config = BlockConfig { mixture: config().mixture.with_capacity(Capacity::Dropless), ..config() };
    let context =
        |start: usize, tokens: usize| AttentionContext::new(Tensor::zeros([2, tokens], &device)).starting_at(start);
    for (half, unit) in HALVES {
        for keeps in ["norm", "router"] {
            for kind in [BlockKind::Dense, BlockKind::Experts] {
                let block = init_seeded(5, &device, |device| config.init(kind, device));
                let block = block.map(&mut Rounded { keeps, ..Rounded::new(8.0, half, half) });
                let (x, mut cache) = (rounded(6, [2, SEQ, WIDTH], half).cast(half), LayerCache::default());
                let whole = values(block.forward(x.clone(), &context(0, SEQ)).0);
                let mut run = |first, tokens| {
                    let new = x.clone().narrow(1, first, tokens);
                    block.forward_cached(new, &context(first, tokens), &mut cache).unwrap().0
                };
                let got = values(Tensor::cat(vec![run(0, 4), run(4, 1), run(5, SEQ - 5)], 1));
                let off = apart(&got, &whole);
                assert!(off < 4.0 * unit, "{half:?}, {keeps}, {kind:?}: {off:e}");
            }
        }
    }
}

#[test]
fn an_f32_bias_beside_half_precision_scores_moves_by_steps_that_half_precision_would_lose() {
    for (half, _) in HALVES {
        let keeps = "bias";
        let router: Router = RouterConfig::new(WIDTH, 4).with_expert_bias(true).init(&Device::flex());
        let mut router = router.map(&mut Rounded { keeps, ..Rounded::new(1.0, half, half) });
        let tokens = rounded(7, [5, WIDTH], half).cast(half);
        // Expert 3 overtakes the others in steps of 0.0002.
        router.bias = router.bias.map(|bias| bias.map(|bias| bias.add_scalar(1.0)));
        for _ in 0..100 {
            router = router.with_updated_bias(&[2.0, 2.0, 2.0, 0.0], 2e-4);
        }
        let bias = router.bias.as_ref().unwrap().val();
        assert_eq!(bias.dtype(), DType::F32);
        assert!(apart(&values(bias), &[0.98, 0.98, 0.98, 1.02]) < 1e-5);
        let routing = router.forward(tokens);
        assert_eq!((routing.logits.dtype(), routing.gates.dtype()), (half, half));
        assert!(values(routing.load.float())[3] >= 5.0, "all tokens choose expert 3");
    }
}
