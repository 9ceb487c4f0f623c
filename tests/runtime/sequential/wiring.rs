//! Values, names, ties and rules find their layers in every cut.

use super::{Data, MICROBATCHES, SAMPLES, WIDTH, WORDS, builder, data, linear, loss, model, square, weights};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::Tensor;
use burn::tensor::activation::gelu;
use burn_pipeline::cost::Partition;
use burn_pipeline::layers::LayerContext;
use burn_pipeline::payload::Skip;
use burn_pipeline::plan::SkipEdge;
use burn_pipeline::schedule::Size;
use burn_pipeline::train::{MeasureError, SharedParameter};
use burn_pipeline::{Accumulation, Batch, Layer, Pipeline, Sequential, init_seeded};
use pipeline_tests::device::device;

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
fn measured_layers_know_their_skips() {
    let kinds: Vec<char> = "EDDDUUUH".chars().collect();
    let Data { ids, mask, wanted } = data(0);
    let part = |x: usize| x / MICROBATCHES;
    let microbatch = Batch::new(ids.narrow(0, 0, part(SAMPLES)))
        .extra("mask", mask.narrow(0, 0, part(SAMPLES)))
        .target(wanted.narrow(0, 0, part(SAMPLES)));
    let builder = Pipeline::builder().layers(model()).devices(vec![device()]);
    let error = builder.measure_layers(microbatch.clone(), &kinds[..4], 0).unwrap_err();
    assert_eq!(error, MeasureError::Kinds { kinds: 4, layers: 8 });
    let coarse = builder.clone().cut(Partition::even(4, 2).unwrap()).schedule("1F1B", Size::new(2, 2));
    let error = coarse.build().map(drop).unwrap_err().to_string();
    assert!(error.contains("divides 4 layers, but the model has 8"), "{error}");
    let layers = builder.measure_layers(microbatch, &kinds, 0).unwrap().layers;
    let edge = |from, to| SkipEdge { from, to };
    assert_eq!(layers.skips(), [edge(1, 6), edge(2, 5)]);
    let parameters: Vec<u64> = layers.all().iter().map(|layer| layer.parameters).collect();
    let linear = (WIDTH * WIDTH + WIDTH) as u64;
    let head = (WIDTH * WORDS + WORDS) as u64;
    assert_eq!(parameters, [[(WORDS * WIDTH) as u64].as_slice(), &[linear; 6], &[head]].concat());
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
    let doubled = |mut layer: Linear, _, _: &[Vec<f64>]| {
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
