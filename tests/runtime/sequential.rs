//! A model given as a list of layers ([`Sequential`]) equals the plain loop over the same layers, in every cut: with
//! skips, extras of the batch, tied layers, rules and checkpoints.

use crate::checkpoint::Folder;
use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::gelu;
use burn::tensor::{Bool, Device, Int, Tensor};
use burn_pipeline::cost::{LinkCosts, Partition, Profile, StageCost};
use burn_pipeline::layers::{LayerContext, LayersError, Model};
use burn_pipeline::payload::Skip;
use burn_pipeline::plan::SkipEdge;
use burn_pipeline::schedule::{Chunks, Size, by_name};
use burn_pipeline::stage::SplitBackward;
use burn_pipeline::train::{AutoOptions, BuildError, Choice, Decision, SharedParameter};
use burn_pipeline::{
    Accumulation, AutoPipeline, Batch, Builder, Checkpoints, Layer, Pipeline, Sequential, init_seeded,
};
use pipeline_tests::device::device;
use pipeline_tests::reference::Reference;

const WORDS: usize = 11;
const WIDTH: usize = 6;
/// Layers on the way down, and on the way up.
const LEVELS: usize = 3;
const SAMPLES: usize = 8;
const LENGTH: usize = 4;
const MICROBATCHES: usize = 4;
const SEED: u64 = 5;

/// The model by hand: values of the way down are added on the way up, last first.
#[derive(Module, Debug)]
struct Whole {
    embed: Embedding,
    down: Vec<Linear>,
    up: Vec<Linear>,
    head: Linear,
}

impl Whole {
    fn new(device: &Device) -> Self {
        let seed = |layer: usize| SEED * 1_000_003 + layer as u64;
        let linears = |first: usize, count: usize, to: usize| {
            let linear = |layer| init_seeded(seed(layer), device, |device| LinearConfig::new(WIDTH, to).init(device));
            (first..first + count).map(linear).collect::<Vec<Linear>>()
        };
        Self {
            embed: init_seeded(seed(0), device, |device| EmbeddingConfig::new(WORDS, WIDTH).init(device)),
            down: linears(1, LEVELS, WIDTH),
            up: linears(1 + LEVELS, LEVELS, WIDTH),
            head: linears(1 + 2 * LEVELS, 1, WORDS).remove(0),
        }
    }

    fn forward(&self, ids: Tensor<2, Int>, mask: &Tensor<3, Bool>) -> Tensor<3> {
        let mut levels = Vec::new();
        let mut x = self.embed.forward(ids);
        for down in &self.down {
            x = gelu(down.forward(x)).mask_fill(mask.clone(), 0.5);
            levels.push(x.clone());
        }
        for up in &self.up {
            x = gelu(up.forward(x)) + levels.pop().unwrap();
        }
        self.head.forward(x)
    }
}

fn square(width: usize) -> impl Fn(&LayerContext) -> Linear + Clone {
    move |at| LinearConfig::new(WIDTH, width).init(&at.device)
}

fn loss(scores: Tensor<3>, wanted: Tensor<3>) -> Tensor<1> {
    (scores - wanted).square().mean()
}

/// The same model as a list.
fn model() -> Model {
    let embed = |at: &LayerContext| EmbeddingConfig::new(WORDS, WIDTH).init(&at.device);
    let down = |down: &Linear, (x, mask): (Tensor<3>, Tensor<3, Bool>)| {
        let x = gelu(down.forward(x)).mask_fill(mask, 0.5);
        (x.clone(), Skip(x))
    };
    let up = |up: &Linear, (x, Skip(level)): (Tensor<3>, Skip<Tensor<3>>)| gelu(up.forward(x)) + level;
    Sequential::new()
        .then(Layer::new("embed", embed, Embedding::forward))
        .repeat(LEVELS, Layer::new("down", square(WIDTH), down).extras(["mask"]).skip_out("level"))
        .repeat(LEVELS, Layer::new("up", square(WIDTH), up).skip_in("level"))
        .then(Layer::new("head", square(WORDS), Linear::forward))
        .seed(SEED)
        .loss(loss)
}

struct Data {
    ids: Tensor<2, Int>,
    mask: Tensor<3, Bool>,
    wanted: Tensor<3>,
}

fn data(step: usize) -> Data {
    let values = |seed, count| pipeline_tests::noise::noise(seed + step as u64, count);
    let floats = |seed, width: usize| {
        let values = values(seed, SAMPLES * LENGTH * width);
        Tensor::<1>::from_floats(&*values, &device()).reshape([SAMPLES, LENGTH, width])
    };
    let ids = Tensor::<1, Int>::arange(0..(SAMPLES * LENGTH) as i64, &device()).add_scalar(step as i64);
    Data {
        ids: ids.remainder_scalar(WORDS as i64).reshape([SAMPLES, LENGTH]),
        mask: floats(31, WIDTH).greater_elem(0.6),
        wanted: floats(7, WORDS),
    }
}

fn batch(step: usize) -> Batch {
    let Data { ids, mask, wanted } = data(step);
    Batch::new(ids).extra("mask", mask).target(wanted)
}

fn plain(steps: usize) -> (Vec<f64>, Vec<Vec<f32>>) {
    let mut plain = Reference::new(Whole::new(&device().autodiff()));
    let losses = (0..steps).map(|step| {
        let (data, size) = (data(step), SAMPLES / MICROBATCHES);
        let loss_of = |whole: &Whole, i: usize| {
            let mask = data.mask.clone().narrow(0, i * size, size);
            let scores = whole.forward(data.ids.clone().narrow(0, i * size, size), &mask);
            loss(scores, data.wanted.clone().narrow(0, i * size, size).autodiff())
        };
        plain.step(&[size; MICROBATCHES], 1e-2, None, loss_of).loss
    });
    let losses = losses.collect();
    (losses, pipeline_tests::reference::weights(&plain.model))
}

fn builder(schedule: &str, ranks: usize) -> Builder {
    let chunks = if let Chunks::Exactly(chunks) = by_name(schedule).unwrap().info().chunks { chunks } else { 1 };
    Pipeline::builder()
        .layers(model())
        .schedule(schedule, Size { ranks, chunks, microbatches: MICROBATCHES })
        .devices(vec![device()])
        .accumulation(Accumulation::Ordered)
        .optimizer(|| AdamWConfig::new().init())
}

/// Weights by name, in the order of the whole model.
fn weights(pipeline: &mut Pipeline) -> Vec<Vec<f32>> {
    let stages = pipeline.weights().unwrap();
    stages.into_iter().flatten().map(|weight| weight.to_data().unwrap().iter::<f32>().collect()).collect()
}

#[test]
fn every_cut_and_schedule_equals_the_plain_loop_bit_for_bit() {
    let (losses, expected) = plain(3);
    for (schedule, ranks) in [
        ("GPipe", 1),
        ("1F1B", 2),
        ("1F1B", 3),
        ("GPipe", 4),
        ("Interleaved1F1B", 2),
        ("ZBH1", 5),
        ("ZBVZeroBubble", 4),
        ("DualPipeV", 2),
    ] {
        for split in [SplitBackward::Eager, SplitBackward::Auto] {
            let mut pipeline = builder(schedule, ranks).split(split).build().unwrap();
            for (step, loss) in losses.iter().enumerate() {
                let report = pipeline.step(batch(step), 1e-2).unwrap();
                assert_eq!(report.loss, *loss, "{schedule} over {ranks}, {split:?}, step {step}");
            }
            assert!(weights(&mut pipeline) == expected, "{schedule} over {ranks}, {split:?}");
        }
    }
}

#[test]
fn uneven_cuts_and_replicas_equal_the_plain_loop() {
    let (losses, expected) = plain(2);
    for boundaries in [vec![1, 2], vec![2, 7], vec![4, 5], vec![6, 7]] {
        let cut = Partition::from_boundaries(model().layers(), &boundaries).unwrap();
        let mut pipeline = builder("1F1B", 3).cut(cut).build().unwrap();
        for (step, loss) in losses.iter().enumerate() {
            assert_eq!(pipeline.step(batch(step), 1e-2).unwrap().loss, *loss, "{boundaries:?}");
        }
        assert!(weights(&mut pipeline) == expected, "{boundaries:?}");
    }
    let pipeline = builder("1F1B", 2).schedule("1F1B", Size::new(2, 2)).data_parallel(2).sharded(true);
    let mut pipeline = pipeline.build().unwrap();
    for (step, loss) in losses.iter().enumerate() {
        assert_eq!(pipeline.step(batch(step), 1e-2).unwrap().loss, *loss);
    }
    assert!(weights(&mut pipeline) == expected);
}

#[test]
fn a_value_crosses_between_its_two_stages_alone() {
    // Layers: embed, down 0 1 2, up 3 4 5 (taking 2, 1, 0), head; a stage each.
    let edges = |ranks: usize| {
        let mut pipeline = builder("GPipe", ranks).build().unwrap();
        pipeline.plan(MICROBATCHES).unwrap().plan().skips().to_vec()
    };
    let edge = |from, to| SkipEdge { from, to };
    assert_eq!(edges(8), [edge(1, 6), edge(2, 5)]);
    // Two layers a stage: (embed, 0), (1, 2), (3, 4), (5, head).
    assert_eq!(edges(4), [edge(0, 3)]);
    assert_eq!(edges(2), []);
}

#[test]
fn parameters_have_the_same_names_in_every_cut() {
    let names = |ranks: usize| {
        let stages = builder("GPipe", ranks).build().unwrap().named_weights().unwrap();
        stages.into_iter().flatten().flat_map(|weight| weight.names).collect::<Vec<_>>()
    };
    let whole = names(1);
    assert_eq!(whole[..3], ["embed.weight", "down.0.weight", "down.0.bias"]);
    assert_eq!(whole.last().unwrap(), "head.bias");
    for ranks in 2..=8 {
        assert_eq!(names(ranks), whole, "{ranks} ranks");
    }
}

#[test]
fn a_checkpoint_fits_another_cut() {
    let folder = Folder::new("sequential");
    let checkpoints = Checkpoints::new(&*folder);
    let mut first = builder("1F1B", 3).build().unwrap();
    first.step(batch(0), 1e-2).unwrap();
    first.save(&checkpoints, &()).unwrap();
    let mut second = builder("ZBVZeroBubble", 2).build().unwrap();
    second.load(&checkpoints.latest().unwrap()).unwrap();
    let expected = plain(2);
    assert_eq!(second.step(batch(1), 1e-2).unwrap().loss, expected.0[1]);
    assert!(weights(&mut second) == expected.1);
}

#[test]
fn a_chosen_schedule_may_cut_anywhere_and_skips_follow() {
    let (losses, expected) = plain(6);
    // A head that costs as much as all other layers.
    let layer = |index| {
        let seconds = if index == 7 { 7.0 } else { 1.0 };
        let (input, weight) = (Some(seconds), Some(seconds));
        let layer = StageCost { forward: seconds, input, weight, activation_bytes: 10.0, ..StageCost::default() };
        StageCost { message_bytes: 1.0, weight_bytes: 100.0, ..layer }
    };
    let profile = Profile::new((0..8).map(layer).collect(), LinkCosts::default()).unwrap();
    let options = AutoOptions { warm_up: 1, measured: 1, trial: 0, ..AutoOptions::default() };
    // Copies of all layers on one rank, which would balance any cut, do not fit.
    let options = AutoOptions { gain: f64::NEG_INFINITY, cap: Some(3150.0), ..options };
    let size = Size::new(2, MICROBATCHES);
    let mut auto = AutoPipeline::new(builder("1F1B", 2), size, options).unwrap().with_profile(profile);
    for (step, loss) in losses.iter().enumerate() {
        assert_eq!(auto.step(batch(step), 1e-2).unwrap().loss, *loss, "step {step}");
    }
    let Decision::Switched(Choice { planned, .. }) = auto.decision() else { panic!("{}", auto.decision()) };
    let cut = &planned.best.partition;
    assert_ne!(*cut, Partition::even(8, cut.stages()).unwrap());
    assert!(weights(auto.pipeline()) == expected);
}

#[test]
fn measured_layers_know_their_skips() {
    let kinds: Vec<char> = "EDDDUUUH".chars().collect();
    let Data { ids, mask, wanted } = data(0);
    let part = |x: usize| x / MICROBATCHES;
    let microbatch = Batch::new(ids.narrow(0, 0, part(SAMPLES)))
        .extra("mask", mask.narrow(0, 0, part(SAMPLES)))
        .target(wanted.narrow(0, 0, part(SAMPLES)));
    let measured = Pipeline::builder().layers(model()).devices(vec![device()]).measure_layers(microbatch, &kinds, 0);
    let layers = measured.unwrap().layers;
    let edge = |from, to| SkipEdge { from, to };
    assert_eq!(layers.skips(), [edge(1, 6), edge(2, 5)]);
    let parameters: Vec<u64> = layers.all().iter().map(|layer| layer.parameters).collect();
    let linear = (WIDTH * WIDTH + WIDTH) as u64;
    let head = (WIDTH * WORDS + WORDS) as u64;
    assert_eq!(parameters, [[(WORDS * WIDTH) as u64].as_slice(), &[linear; 6], &[head]].concat());
}

fn linear(name: &str) -> Layer<Linear, Tensor<2>, Tensor<2>> {
    Layer::new(name, |at| LinearConfig::new(3, 3).init(&at.device), Linear::forward)
}

fn refused(model: Model) -> LayersError {
    let built = Pipeline::builder().layers(model).schedule("1F1B", Size::new(1, 1)).devices(vec![device()]).build();
    match built.err() {
        Some(BuildError::Model(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_list_that_is_no_model_is_refused_with_the_layer_named() {
    let name = |name: &str| name.to_owned();
    assert_eq!(
        refused(Sequential::<burn_pipeline::layers::chain::Start<Tensor<2>>>::new().without_loss()),
        LayersError::Empty
    );
    let twice = Sequential::new().then(linear("a")).then(linear("b")).then(linear("a")).without_loss();
    assert_eq!(refused(twice), LayersError::NameTwice { name: name("a") });
    let never = Sequential::new().repeat(0, linear("a")).without_loss();
    assert_eq!(refused(never), LayersError::NoRepetition { name: name("a") });
    let make = |at: &LayerContext| LinearConfig::new(3, 3).init(&at.device);
    let gives = || Layer::new("gives", make, |own: &Linear, x: Tensor<2>| (own.forward(x.clone()), Skip(x)));
    let takes = |own: &Linear, (x, Skip(y)): (Tensor<2>, Skip<Tensor<2>>)| own.forward(x) + y;
    let takes = || Layer::new("takes", make, takes);
    let not_taken = Sequential::new().then(gives().skip_out("x")).without_loss();
    assert_eq!(refused(not_taken), LayersError::NotTaken { layer: name("gives"), key: "x" });
    let not_given = Sequential::new().then(gives().skip_out("x")).then(takes().skip_in("y")).without_loss();
    assert_eq!(refused(not_given), LayersError::NotGiven { layer: name("takes"), key: "y" });
    let undeclared = Sequential::new().then(gives()).then(takes()).without_loss();
    assert_eq!(refused(undeclared), LayersError::NotDeclared { layer: name("gives") });
    let edge = Pipeline::builder().layers(Sequential::new().repeat(3, linear("a")).without_loss()).skip(0, 2);
    let edge = edge.schedule("1F1B", Size::new(3, 1)).devices(vec![device()]).build().unwrap_err();
    assert!(matches!(edge, BuildError::Model(LayersError::Edges)), "{edge}");
    // Names that are alike only with those of parameters.
    let alike = Sequential::new().repeat(2, linear("a")).then(linear("a.1")).without_loss();
    let alike = Pipeline::builder().layers(alike).schedule("1F1B", Size::new(1, 1)).devices(vec![device()]).build();
    assert!(matches!(alike.unwrap_err(), BuildError::SameName { name, .. } if name.starts_with("a.1.")));
    let other = |own: &Linear, (x, Skip(_)): (Tensor<2>, Skip<Tensor<3>>)| own.forward(x);
    let other = Layer::new("takes", make, other).skip_in("x");
    let message = refused(Sequential::new().then(gives().skip_out("x")).then(other).without_loss()).to_string();
    assert_eq!(message, "under the key `x`, layer `gives` gives `(Tensor<2>)`, but layer `takes` takes `(Tensor<3>)`");
}

#[test]
fn tied_layers_are_named_by_their_paths_in_every_cut() {
    // The head multiplies by the embedding's transpose.
    let embed = |at: &LayerContext| EmbeddingConfig::new(WORDS, WIDTH).init(&at.device);
    let head = |head: &Embedding, x: Tensor<3>| x.matmul(head.weight.val().transpose().unsqueeze());
    let train = |ranks: usize| {
        let model = Sequential::new()
            .then(Layer::new("embed", embed, Embedding::forward))
            .repeat(2, Layer::new("inner", square(WIDTH), |inner: &Linear, x: Tensor<3>| gelu(inner.forward(x))))
            .then(Layer::new("head", embed, head))
            .loss(loss);
        let tied = SharedParameter::new("words").at("embed.weight").at("head.weight");
        let mut pipeline = Pipeline::builder()
            .layers(model)
            .share(tied)
            .schedule("1F1B", Size::new(ranks, MICROBATCHES))
            .devices(vec![device()])
            .accumulation(Accumulation::Ordered)
            .optimizer(|| AdamWConfig::new().init())
            .build()
            .unwrap();
        let mut losses = Vec::new();
        for step in 0..3 {
            let Data { ids, wanted, .. } = data(step);
            losses.push(pipeline.step(Batch::new(ids).target(wanted), 1e-2).unwrap().loss);
        }
        let weights = weights(&mut pipeline);
        assert!(weights.first() == weights.last(), "the copies of {ranks} ranks are equal");
        (losses, weights)
    };
    let first = train(4);
    for ranks in 1..4 {
        assert!(train(ranks) == first, "{ranks} ranks");
    }
}

#[test]
fn a_layers_rule_runs_after_each_step() {
    let make = |at: &LayerContext| LinearConfig::new(3, 3).init(&at.device);
    let doubled = |mut layer: Linear, _: &[Vec<f64>]| {
        layer.weight = layer.weight.map(|weight| weight.mul_scalar(2.0));
        layer
    };
    let model = Sequential::new()
        .repeat(2, linear("plain"))
        .then(Layer::new("ruled", make, Linear::forward).after_step(doubled))
        .loss(|y: Tensor<2>, _: Tensor<2>| y.sum().mul_scalar(0.0));
    let mut pipeline = Pipeline::builder()
        .layers(model)
        .schedule("1F1B", Size::new(3, 1))
        .devices(vec![device()])
        .optimizer(|| burn::optim::SgdConfig::new().init())
        .build()
        .unwrap();
    let before = weights(&mut pipeline);
    let x = Tensor::<2>::ones([1, 3], &device());
    pipeline.step(Batch::new(x.clone()).target(x), 1.0).unwrap();
    let after = weights(&mut pipeline);
    let twice = |values: &[f32]| values.iter().map(|value| 2.0 * value).collect::<Vec<_>>();
    assert!(after[..4] == before[..4] && after[4] == twice(&before[4]) && after[5] == before[5]);
}

#[test]
fn values_of_two_types_and_keys_and_extras_find_their_layers_in_every_cut() {
    // The first layer gives three values, two of them under one key; extras are read as one type and as another.
    type Given = ((Tensor<2>, Skip<Tensor<2>>), Skip<f64>);
    let make = |at: &LayerContext| LinearConfig::new(3, 3).init(&at.device);
    let gives = |own: &Linear, x: Tensor<2>| -> (Given, Skip<Tensor<2>>) {
        let y = own.forward(x.clone());
        (((y.clone(), Skip(x)), Skip(3.0)), Skip(y.mul_scalar(0.5)))
    };
    type Number = (Tensor<2>, Skip<f64>);
    let number = |own: &Linear, (x, Skip(factor)): Number| own.forward(x).mul_scalar(factor);
    type Added = (Tensor<2>, Skip<Tensor<2>>);
    let added = |own: &Linear, (x, Skip(other)): Added| own.forward(x) + other;
    let masked = |own: &Linear, (x, mask): (Tensor<2>, Tensor<2>)| own.forward(x) * mask;
    let either = |own: &Linear, (x, mask): (Tensor<2>, Option<Tensor<2>>)| match mask {
        Some(mask) => own.forward(x) + mask,
        None => own.forward(x),
    };
    let model = || {
        Sequential::new()
            .then(Layer::new("gives", make, gives).skip_out("a").skip_out("b").skip_out("a"))
            .then(Layer::new("masked", make, masked).extras(["mask"]))
            .then(Layer::new("last", make, added).skip_in("a"))
            .then(Layer::new("masked_too", make, masked).extras(["mask"]))
            .then(Layer::new("number", make, number).skip_in("b"))
            .then(Layer::new("either", make, either).extras(["other"]))
            .then(Layer::new("first", make, added).skip_in("a"))
            .loss(|y: Tensor<2>, wanted: Tensor<2>| (y - wanted).square().mean())
    };
    let values = |seed| Tensor::<1>::from_floats(&*pipeline_tests::noise::noise(seed, 12), &device()).reshape([4, 3]);
    let batch = || Batch::new(values(1)).extra("mask", values(2)).extra("other", Some(values(3))).target(values(4));
    // By hand.
    let layer = |index: u64| init_seeded(index, &device(), |device| LinearConfig::new(3, 3).init(device));
    let layers: Vec<Linear> = (0..7).map(layer).collect();
    let by_hand = |x: Tensor<2>, mask: Tensor<2>, other: Tensor<2>| {
        let y = layers[0].forward(x.clone());
        let half = y.clone().mul_scalar(0.5);
        let z = layers[2].forward(layers[1].forward(y) * mask.clone()) + x;
        let z = layers[4].forward(layers[3].forward(z) * mask).mul_scalar(3.0);
        layers[6].forward(layers[5].forward(z) + other) + half
    };
    let expected = by_hand(values(1), values(2), values(3)).into_data();
    let mut losses = Vec::new();
    for ranks in 1..=7 {
        let built = Pipeline::builder().layers(model()).schedule("1F1B", Size::new(ranks, 1)).devices(vec![device()]);
        let mut pipeline = built.optimizer(|| AdamWConfig::new().init()).build().unwrap();
        let output: Tensor<2> = pipeline.eval(batch()).unwrap().output().unwrap();
        assert_eq!(output.into_data(), expected, "{ranks} ranks");
        pipeline.step(batch(), 1e-2).unwrap();
        losses.push(pipeline.step(batch(), 1e-2).unwrap().loss);
    }
    assert!(losses.iter().all(|loss| *loss == losses[0]), "{losses:?}");
}
