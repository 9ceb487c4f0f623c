//! Tied parameters of tensor-parallel stages: pieces are added to pieces, and whole parameters are added alike on
//! all members.

use crate::model::weights;
use crate::parity::{ENGINES, Trained, assert_close};
use burn::module::{Module, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{
    Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig, SwiGlu, SwiGluConfig,
};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::nn::{GatedFeedForward, VocabEmbedding, vocab_cross_entropy};
use burn_pipeline::stage::{Names, Stage, StageBox};
use burn_pipeline::tensor_parallel::TensorGroup;
use burn_pipeline::train::{Checkpoint, Checkpoints, GroupSizes, SharedParameter};
use burn_pipeline::{Batch, Builder, Pipeline, Size, StageContext, boundary, init_seeded};
use pipeline_tests::reference::Reference;
use proptest::prelude::{ProptestConfig, proptest};
use tempfile::tempdir;

const RATE: f64 = 0.5;
const CLIP: f64 = 0.1;
const SAMPLES: usize = 8;
const INIT: Initializer = Initializer::Normal { mean: 0.0, std: 0.4 };

#[derive(Clone, Copy, Debug)]
struct Sizes {
    vocab: usize,
    width: usize,
    hidden: usize,
    seq: usize,
    blocks: usize,
}

const SMALL: Sizes = Sizes { vocab: 12, width: 6, hidden: 8, seq: 3, blocks: 4 };

fn table(sizes: Sizes, seed: u64, device: &Device) -> Embedding {
    let config = EmbeddingConfig::new(sizes.vocab, sizes.width).with_initializer(INIT);
    init_seeded(seed, device, |device| config.init(device))
}

/// The norm that all blocks share.
fn norm(sizes: Sizes, device: &Device) -> LayerNorm {
    LayerNormConfig::new(sizes.width).init(device)
}

fn layers(sizes: Sizes, place: usize, device: &Device) -> (SwiGlu, Linear) {
    let Sizes { width, hidden, .. } = sizes;
    init_seeded(1 + place as u64, device, |device| {
        let gated = SwiGluConfig::new(width, hidden).with_bias(true).with_initializer(INIT).init(device);
        (gated, LinearConfig::new(hidden, width).with_initializer(INIT).init(device))
    })
}

fn data(sizes: Sizes) -> (Tensor<2, Int>, Tensor<2, Int>) {
    let numbers = Tensor::<1, Int>::arange(0..(SAMPLES * sizes.seq) as i64, &Device::flex());
    let shaped = |ids: Tensor<1, Int>| ids.remainder_scalar(sizes.vocab as i64).reshape([SAMPLES, sizes.seq]);
    (shaped(numbers.clone().mul_scalar(7)), shaped(numbers.mul_scalar(11).add_scalar(3)))
}

/// The model on one device, with each tied parameter once.
#[derive(Module, Debug)]
struct Plain {
    table: Embedding,
    norm: LayerNorm,
    blocks: Vec<(SwiGlu, Linear)>,
}

impl Plain {
    fn loss(&self, tokens: Tensor<2, Int>, targets: Tensor<2, Int>) -> Tensor<1> {
        let [batch, seq] = tokens.dims();
        let x = self.blocks.iter().fold(self.table.forward(tokens), |x, (gated, down)| {
            x.clone() + down.forward(gated.forward(self.norm.forward(x)))
        });
        let [vocab, width] = self.table.weight.dims();
        let scores = x.reshape([batch * seq, width]).matmul(self.table.weight.val().transpose());
        assert_eq!(scores.dims(), [batch * seq, vocab]);
        let loss = CrossEntropyLossConfig::new().init(&scores.device());
        loss.forward(scores, targets.reshape([batch * seq]))
    }
}

fn plain(sizes: Sizes) -> Trained {
    let device = Device::flex().autodiff();
    let model = Plain {
        table: table(sizes, 0, &device),
        norm: norm(sizes, &device),
        blocks: (0..sizes.blocks).map(|place| layers(sizes, place, &device)).collect(),
    };
    let mut reference = Reference::resumed(model, SgdConfig::new().init());
    let (tokens, targets) = data(sizes);
    let mut step = || {
        let given = reference.step(&[2; 4], RATE, Some(CLIP), |model: &Plain, i| {
            let piece = |of: &Tensor<2, Int>| of.clone().narrow(0, 2 * i, 2).autodiff();
            model.loss(piece(&tokens), piece(&targets))
        });
        (given.loss, given.norm)
    };
    let steps = vec![step(), step()];
    Trained { steps, weights: reference.weights() }
}

#[derive(Debug)]
enum Signal {
    Tokens(Tensor<2, Int>),
    Hidden(Tensor<3>),
}

boundary!(
    enum Signal {
        Tokens(a),
        Hidden(a),
    }
);

#[derive(Module, Debug)]
struct Part {
    token: Option<VocabEmbedding>,
    norm: LayerNorm,
    blocks: Vec<GatedFeedForward>,
    head: Option<Param<Tensor<2>>>,
    #[module(skip)]
    group: TensorGroup,
}

impl Stage for Part {
    type Input = Signal;
    type Extra = ();
    type Output = Signal;

    fn forward(&self, input: Signal, (): ()) -> Signal {
        let x = match (input, &self.token) {
            (Signal::Tokens(tokens), Some(token)) => token.forward(tokens),
            (Signal::Hidden(x), None) => x,
            (other, _) => panic!("the first stage takes tokens, and no other: {other:?}"),
        };
        let x = self.blocks.iter().fold(x, |x, block| x.clone() + block.forward(self.norm.forward(x)));
        // The vectors of this rank's words give their scores.
        let scores = |head: &Param<Tensor<2>>| self.group.copy_to(x.clone()).matmul(head.val().transpose().unsqueeze());
        Signal::Hidden(self.head.as_ref().map_or(x.clone(), scores))
    }
}

/// Every rank but a group's first, and every stage but the first, draws other initial values, which must not be
/// used.
fn stage(sizes: Sizes, at: &StageContext, axis: usize) -> StageBox {
    let (group, device) = (&at.group, &at.device);
    let other = at.index + group.member();
    let table = || table(sizes, 100 * other as u64, device);
    let mut norm = norm(sizes, device);
    norm.gamma = Initializer::Constant { value: 1.0 + other as f64 }.init([sizes.width], device);
    let part = Part {
        token: at.is_first().then(|| VocabEmbedding::cut(table(), group)),
        norm,
        blocks: at
            .layers(sizes.blocks)
            .map(|place| {
                let (gated, down) = layers(sizes, place, device);
                GatedFeedForward::cut(gated, down, group)
            })
            .collect(),
        head: at.is_last().then(|| group.cut(table().weight, axis)),
        group: group.clone(),
    };
    let names = Names::default().layers_from("blocks", at.layers(sizes.blocks).start);
    if !at.is_last() {
        return StageBox::new(part).named(names);
    }
    let group = group.clone();
    let stage = StageBox::with_loss(part, move |scores: Signal, targets: Tensor<2, Int>| {
        let Signal::Hidden(scores) = scores else { panic!("a last stage gives scores") };
        let [batch, seq, vocab] = scores.dims();
        vocab_cross_entropy(scores.reshape([batch * seq, vocab]), targets.reshape([batch * seq]), &group)
    });
    stage.named(names)
}

fn builder(
    sizes: Sizes,
    (schedule, chunks): (&str, usize),
    (ranks, replicas): (usize, usize),
    groups: impl Into<GroupSizes>,
) -> Builder {
    Pipeline::builder()
        .schedule(schedule, Size { ranks, chunks, microbatches: 4 / replicas })
        .devices(vec![Device::flex()])
        .stages(move |at| stage(sizes, at, 0))
        .optimizer(|| SgdConfig::new().init())
        .data_parallel(replicas)
        .tensor_parallel(groups)
        .share(SharedParameter::new("table").at("token.weight").at("head"))
        .share(SharedParameter::new("scale").at("norm.gamma"))
        .share(SharedParameter::new("shift").at("norm.beta"))
        .clip_norm(CLIP)
}

fn batch(sizes: Sizes) -> Batch {
    let (tokens, targets) = data(sizes);
    Batch::new(Signal::Tokens(tokens)).target(targets)
}

/// The weights as one device holds them: the table, the norm, then all blocks. Copies must be bitwise equal.
fn once(pipeline: &mut Pipeline, sizes: Sizes) -> Vec<Vec<f32>> {
    let all = weights(pipeline);
    let (table, head) = (all[0].clone(), all[all.len() - 1].clone());
    assert!(table == head, "the embedding and the head differ");
    let (gamma, beta) = (all[1].clone(), all[2].clone());
    let blocks: Vec<Vec<f32>> =
        all[1..all.len() - 1].iter().filter(|weight| **weight != gamma && **weight != beta).cloned().collect();
    assert_eq!(blocks.len(), 6 * sizes.blocks, "norms differ");
    [vec![table, gamma, beta], blocks].concat()
}

fn trained(sizes: Sizes, builder: Builder) -> Trained {
    let mut pipeline = builder.build().unwrap();
    let mut step = || {
        let report = pipeline.step(batch(sizes), RATE).unwrap();
        (report.loss, report.gradient_norm.unwrap())
    };
    let steps = vec![step(), step()];
    Trained { steps, weights: once(&mut pipeline, sizes) }
}

#[test]
fn tied_weights_of_groups_train_as_the_plain_loop_does() {
    let expected = plain(SMALL);
    for (schedule, grid, members) in [
        (("1F1B", 1), (2, 1), vec![2]),
        (("ZBVZeroBubble", 2), (2, 1), vec![2]),
        (("1F1B", 1), (4, 1), vec![2]),
        (("GPipe", 1), (2, 2), vec![2]),
        (("DualPipe", 1), (2, 1), vec![2]),
        (("1F1B", 1), (2, 1), vec![4]),
    ] {
        for (engine, split, compile) in ENGINES {
            let builder = builder(SMALL, schedule, grid, members.clone()).split(split).compile(compile);
            let place = format!("{schedule:?} on {grid:?} of {members:?}, {engine}");
            assert_close(&trained(SMALL, builder), &expected, &place);
        }
    }
}

#[test]
fn copies_are_tied_past_a_stage_that_another_number_of_ranks_holds() {
    // Every stage has the norm, so it is not tied here.
    let tied = |groups: [usize; 3]| {
        let builder = Pipeline::builder()
            .schedule("1F1B", Size::new(3, 4))
            .devices(vec![Device::flex()])
            .stages(|at| {
                let index = at.index;
                let own = move |name: &str| match name.starts_with("norm.") {
                    true => format!("stages.{index}.{name}"),
                    false => name.to_owned(),
                };
                let names = Names::default().layers_from("blocks", at.layers(SMALL.blocks).start);
                stage(SMALL, at, 0).named(names.renamed(own))
            })
            .optimizer(|| SgdConfig::new().init())
            .tensor_parallel(groups)
            .clip_norm(CLIP)
            .share(SharedParameter::new("table").at("token.weight").at("head"));
        let mut pipeline = builder.build().unwrap();
        let losses = [(); 3].map(|()| pipeline.step(batch(SMALL), RATE).unwrap().loss);
        let all = weights(&mut pipeline);
        assert!(all[0] == all[all.len() - 1], "the embedding and the head differ");
        losses
    };
    let expected = tied([1, 1, 1]);
    assert!(expected[2] < expected[0] - 0.01, "it learns");
    for groups in [[2, 1, 2], [2, 4, 2], [1, 2, 1]] {
        let close = |(got, expected): (f64, f64)| (got - expected).abs() < 1e-5 * expected;
        let got = tied(groups);
        assert!(got.into_iter().zip(expected).all(close), "{groups:?}: {got:?} for {expected:?}");
    }
}

#[test]
fn copies_of_groups_of_different_sizes_and_copies_cut_otherwise_are_refused() {
    let error = builder(SMALL, ("1F1B", 1), (2, 1), [1, 2]).build().unwrap_err().to_string();
    for what in [
        "shared parameter `table`",
        "stage 1 has a group of 2 rank(s), and stage 0, which has a copy too, one of 1",
        "`Builder::tensor_parallel`",
    ] {
        assert!(error.contains(what), "{error}");
    }
    let otherwise = builder(SMALL, ("1F1B", 1), (2, 1), 2).stages(|at| stage(SMALL, at, 1));
    let error = otherwise.build().unwrap_err().to_string();
    assert!(error.contains("trained, cut along axis 1, but") && error.contains("trained, cut along axis 0"), "{error}");
}

#[test]
fn a_report_says_what_is_shared_as_one_device_has_it() {
    let pipeline = builder(SMALL, ("1F1B", 1), (2, 1), 2).build().unwrap();
    let report = pipeline.shared().iter().find(|report| report.name == "table").unwrap();
    assert_eq!(
        (report.shape.as_slice(), report.bytes),
        ([SMALL.vocab, SMALL.width].as_slice(), 4 * SMALL.vocab * SMALL.width)
    );
    assert_eq!(
        report.copies.iter().map(|copy| (copy.stage, copy.path.as_str())).collect::<Vec<_>>(),
        [(0, "token.weight"), (1, "head")]
    );
}

#[test]
fn tied_weights_move_between_grids_in_checkpoints() {
    let folder = tempdir().unwrap();
    let build = |ranks, groups: usize| {
        let builder = builder(SMALL, ("1F1B", 1), (ranks, 1), groups).optimizer(|| AdamWConfig::new().init());
        builder.build().unwrap()
    };
    let step = |pipeline: &mut Pipeline| pipeline.step(batch(SMALL), 0.01).unwrap().loss;
    let mut pipeline = build(2, 2);
    step(&mut pipeline);
    let checkpoint = Checkpoint::open(pipeline.save(&Checkpoints::new(folder.path()), &7_u32).unwrap()).unwrap();
    let expected = step(&mut pipeline);
    for (ranks, groups) in [(2, 1), (4, 2), (2, 4)] {
        let mut resumed = build(ranks, groups);
        resumed.load(&checkpoint).unwrap();
        let loss = step(&mut resumed);
        assert!((loss - expected).abs() < 1e-5 * expected, "{ranks} x {groups}: loss {loss} for {expected}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]
    /// At least four values per norm: those of one over three are often nearly equal, and then a rounding of the plain
    /// loop's own weights changes its gradient norm by more than the bound.
    #[test]
    fn tied_weights_of_any_size_train_as_the_plain_loop_does(
        members in 2usize..5, vocab in 2usize..5, width in 4usize..8, hidden in 1usize..4, ranks in 2usize..4,
        engine in 0usize..3
    ) {
        let sizes = Sizes { vocab: vocab * members, width, hidden: hidden * members, seq: 3, blocks: 3 };
        let (_, split, compile) = ENGINES[engine];
        let builder = builder(sizes, ("1F1B", 1), (ranks, 1), members).split(split).compile(compile);
        assert_close(&trained(sizes, builder), &plain(sizes), &format!("{sizes:?} on {ranks} x {members}, {split:?}"));
    }
}
