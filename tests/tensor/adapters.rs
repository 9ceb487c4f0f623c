//! Low-rank adapters (Burn's LoRA) of layers that are cut over a group train as on one device; what would not is
//! refused by name.

use super::sequential::{Block, Piece, Plain, STEPS, block, data, loss};
use burn::module::{Lora, Module, Reparameterization, Reparameterizer};
use burn::optim::SgdConfig;
use burn::store::IdentityAdapter;
use burn::tensor::{Device, Tensor};
use burn_pipeline::layers::{Layer, LayerContext, LayerGroups, Model, Sequential};
use burn_pipeline::link::Threads;
use burn_pipeline::nn::GatedFeedForward;
use burn_pipeline::stage::{SplitBackward, init_seeded};
use burn_pipeline::train::{Export, Pretrained};
use burn_pipeline::{Batch, Builder, Checkpoints, Pipeline, Size};
use pipeline_tests::device::device;
use pipeline_tests::reference::Reference;
use std::collections::{BTreeMap, BTreeSet};
use tempfile::tempdir;

const LAYERS: usize = super::sequential::LAYERS;
const RATE: f64 = 0.5;

fn adapted(device: &Device) -> Block {
    block(device).apply_lora(Lora::new(2, 4.0))
}

fn cut(Block { norm, gated, down }: Block, at: &LayerGroups) -> Piece {
    Piece { norm, feed: GatedFeedForward::cut(gated, down, &at.group) }
}

fn model_of(
    seed: u64,
    make: impl Fn(&LayerContext) -> Block + Send + Sync + 'static,
    cut: impl Fn(Block, &LayerGroups) -> Piece + Send + Sync + 'static,
) -> Model {
    let forward = |own: &Piece, x: Tensor<2>| x.clone() + own.feed.forward(own.norm.forward(x));
    Sequential::new().repeat(LAYERS, Layer::cut("blocks", make, cut, forward)).seed(seed).loss(loss)
}

fn builder(model: Model, (schedule, ranks): (&str, usize), (members, replicas): (usize, usize)) -> Builder {
    Pipeline::builder()
        .layers(model)
        .schedule(schedule, Size::new(ranks, 4 / replicas))
        .tensor_parallel(members)
        .data_parallel(replicas)
        .devices(vec![device()])
        .optimizer(|| SgdConfig::new().init())
}

fn model() -> Model {
    model_of(0, |at| adapted(&at.device), cut)
}

/// Whole weights by name.
fn named(pipeline: &mut Pipeline) -> BTreeMap<String, Vec<f32>> {
    let weights = pipeline.named_weights().unwrap().into_iter().flatten();
    weights.map(|w| (w.names[0].clone(), w.value.to_data().unwrap().iter().collect())).collect()
}

/// Losses and weights of the plain loop.
fn plain() -> (Vec<f64>, Vec<Vec<f32>>) {
    let whole = |layer| init_seeded(layer, &device().autodiff(), adapted);
    let plain = Plain { blocks: (0..LAYERS as u64).map(whole).collect() };
    let mut plain = Reference::resumed(plain, SgdConfig::new().init());
    let losses = (0..STEPS).map(|step| {
        let [x, wanted] = data(step);
        let part = |tensor: &Tensor<2>, i| tensor.clone().narrow(0, 2 * i, 2).autodiff();
        plain.step(&[2; 4], RATE, None, |plain: &Plain, i| loss(plain.forward(part(&x, i)), part(&wanted, i))).loss
    });
    let losses = losses.collect();
    (losses, pipeline_tests::reference::weights(&plain.model))
}

fn far(one: &[f32], other: &[f32]) -> f32 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max)
}

#[test]
fn adapters_of_cut_layers_train_as_on_one_device_and_leave_the_base_as_it_was() {
    let (losses, expected) = plain();
    for (schedule, grid, split, sharded) in [
        (("GPipe", 1), (2, 1), SplitBackward::Eager, false),
        (("1F1B", 2), (2, 1), SplitBackward::Captured, false),
        (("ZBH1", 2), (4, 1), SplitBackward::Auto, false),
        (("ZBH1", 2), (2, 1), SplitBackward::Eager, false),
        (("1F1B", 2), (2, 2), SplitBackward::Auto, true),
    ] {
        let place = format!("{schedule:?}, {grid:?}, {split:?}");
        let mut pipeline = builder(model(), schedule, grid).split(split).sharded(sharded).build().unwrap();
        let before = named(&mut pipeline);
        for (step, expected) in losses.iter().enumerate() {
            let [x, wanted] = data(step);
            let got = pipeline.step(Batch::new(x).target(wanted), RATE).unwrap().loss;
            assert!((got - expected).abs() <= 1e-5 * expected, "{place}, step {step}: {got}, {expected}");
        }
        let after = named(&mut pipeline);
        for (name, value) in &after {
            let moved = far(value, &before[name]);
            assert!(if name.contains(".lora.") { moved > 1e-4 } else { moved == 0.0 }, "{place}: {name}, {moved}");
        }
        let weights = pipeline.weights().unwrap().into_iter().flatten();
        for (weight, expected) in weights.zip(&expected) {
            let values: Vec<f32> = weight.to_data().unwrap().iter().collect();
            assert!(far(&values, expected) < 2e-6, "{place}: {}", far(&values, expected));
        }
    }
}

#[test]
fn adapters_of_cut_layers_are_saved_whole_and_fit_other_groups() {
    let root = tempdir().unwrap();
    let checkpoints = Checkpoints::new(root.path());
    let mut two = builder(model(), ("1F1B", 2), (2, 1)).build().unwrap();
    let step = |pipeline: &mut Pipeline, step| {
        let [x, wanted] = data(step);
        pipeline.step(Batch::new(x).target(wanted), RATE).unwrap().loss
    };
    step(&mut two, 0);
    two.save(&checkpoints, &()).unwrap();
    for (schedule, members) in [(("GPipe", 1), 1), (("1F1B", 2), 4)] {
        let mut other = builder(model(), schedule, (members, 1)).build().unwrap();
        other.load(&checkpoints.latest().unwrap()).unwrap();
        assert!(named(&mut other) == named(&mut two));
        let (got, expected) = (step(&mut other, 1), plain().0[1]);
        assert!((got - expected).abs() <= 1e-5 * expected, "{members}: {got}, {expected}");
    }
}

#[test]
fn checkpoints_over_pretrained_weights_fit_other_groups_and_are_refused_over_other_pieces() {
    let root = tempdir().unwrap();
    let (base, checkpoints) = (root.path().join("base"), Checkpoints::new(root.path().join("tuned")).over_pretrained());
    std::fs::create_dir_all(&base).unwrap();
    let stored = model_of(9, |at| adapted(&at.device), cut);
    let mut whole = builder(stored, ("GPipe", 1), (1, 1)).build().unwrap();
    whole.export_as(base.join("model.safetensors"), Export::from(IdentityAdapter).merged()).unwrap();
    let base = Pretrained::folder(&base);
    let start = |groups| {
        let mut pipeline = builder(model(), ("1F1B", 2), groups).sharded(groups.1 > 1).build().unwrap();
        pipeline.load_pretrained(&base).unwrap();
        pipeline
    };
    let mut two = start((2, 1));
    let [x, wanted] = data(0);
    two.step(Batch::new(x).target(wanted), RATE).unwrap();
    let saved = two.save(&checkpoints, &()).unwrap();
    let file = std::fs::read(saved.join("stage-000.safetensors")).unwrap();
    let names = safetensors::SafeTensors::deserialize(&file).unwrap();
    assert!(names.names().into_iter().all(|name| name.contains(".lora.")), "{:?}", names.names());
    let latest = checkpoints.latest().unwrap();
    for groups in [(1, 1), (4, 1), (2, 2)] {
        let mut other = start(groups);
        other.load(&latest).unwrap();
        assert!(named(&mut other) == named(&mut two), "{groups:?}");
    }
    apart(&builder(model(), ("1F1B", 2), (2, 1)), 4, |pipeline| {
        // Without the base, every rank gets the refusal.
        let error = pipeline.load(&latest).unwrap_err();
        assert!(error.to_string().contains("load_pretrained"), "{error}");
        pipeline.load_pretrained(&base).unwrap();
        pipeline.load(&latest).unwrap();
    });
}

#[test]
fn adapters_of_cut_layers_are_merged_into_whole_weights() {
    let root = tempdir().unwrap();
    for (schedule, members, replicas) in [(("GPipe", 1), 2, 1), (("1F1B", 2), 2, 1), (("1F1B", 2), 2, 2)] {
        let place = format!("{schedule:?}, {members} members, {replicas} replicas");
        let of = || builder(model(), schedule, (members, replicas)).sharded(replicas > 1);
        let step = |pipeline: &mut Pipeline| {
            let [x, wanted] = data(0);
            pipeline.step(Batch::new(x).target(wanted), RATE).unwrap();
        };
        let merged = || Export::from(IdentityAdapter).merged();
        let mut pipeline = of().build().unwrap();
        step(&mut pipeline);
        let path = root.path().join("together.safetensors");
        pipeline.export_as(&path, merged()).unwrap();
        // Each weight is the base's plus the product of the whole factors, times alpha over rank.
        let own = named(&mut pipeline);
        let bytes = std::fs::read(&path).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let expected = own.keys().filter(|name| !name.contains(".lora.")).collect::<Vec<_>>();
        assert_eq!(
            file.names().into_iter().collect::<BTreeSet<_>>(),
            expected.iter().map(|name| name.as_str()).collect()
        );
        for name in expected {
            let stored = file.tensor(name).unwrap();
            let floats = stored.data().chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect::<Vec<_>>();
            let Some(a) = own.get(&format!("{name}.lora.a")) else {
                assert_eq!(floats, own[name], "{place}: {name}");
                continue;
            };
            let (b, width) = (&own[&format!("{name}.lora.b")], stored.shape()[1]);
            let factor = |row: usize, column: usize| a[2 * row] * b[column] + a[2 * row + 1] * b[width + column];
            let whole = |at: usize| own[name][at] + 2.0 * factor(at / width, at % width);
            let whole: Vec<f32> = (0..floats.len()).map(whole).collect();
            assert!(far(&floats, &whole) < 1e-6, "{place}: {name}, {}", far(&floats, &whole));
            assert!(far(&floats, &own[name]) > 1e-4, "{place}: {name} did not change");
        }
        // The pipeline goes on with its adapters, and ranks that are apart write the same file.
        assert!(named(&mut pipeline) == own, "{place}");
        apart(&of(), schedule.1 * members * replicas, |pipeline| {
            step(pipeline);
            pipeline.export_as(root.path().join("apart.safetensors"), merged()).unwrap();
        });
        assert!(std::fs::read(root.path().join("apart.safetensors")).unwrap() == bytes, "{place}");
    }
}

/// Runs one pipeline per rank, as in processes.
fn apart(builder: &Builder, ranks: usize, run: impl Fn(&mut Pipeline) + Sync) {
    let (threads, run) = (Threads::new(ranks), &run);
    std::thread::scope(|scope| {
        for rank in 0..ranks {
            let (link, builder) = (threads.link(rank, device()), builder.clone());
            scope.spawn(move || run(&mut builder.build_rank(Box::new(link)).unwrap()));
        }
    });
}

#[test]
fn an_adapter_that_is_added_to_a_piece_is_refused_by_name() {
    let late = model_of(0, |at| block(&at.device), |whole, at| cut(whole, at).apply_lora(Lora::new(2, 4.0)));
    let error = builder(late, ("1F1B", 2), (2, 1)).build().unwrap_err().to_string();
    let named = error.contains("feed.down.weight`") || error.contains("feed.gated.linear_inner.weight`");
    assert!(named && error.contains("add adapters to the whole layer"), "{error}");
}

/// A reparameterization that the group does not know.
#[derive(Module, Debug)]
struct Halved {
    unused: burn::module::Param<Tensor<1>>,
}

impl Reparameterization for Halved {
    const NAME: &'static str = "halved";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        base * 0.5
    }
}

struct Halve;

impl Reparameterizer for Halve {
    type Reparam = Halved;

    fn reparameterize<const D: usize>(
        &mut self,
        _: &str,
        param: burn::module::Param<Tensor<D>>,
    ) -> (burn::module::Param<Tensor<D>>, Option<Halved>) {
        let unused = burn::module::Param::from_tensor(Tensor::zeros([1], &param.lazy_device()));
        (param, (D == 2).then_some(Halved { unused }))
    }
}

#[test]
fn another_reparameterization_of_a_cut_weight_is_refused() {
    let halved = model_of(0, |at| block(&at.device).apply_reparameterization(Halve), cut);
    let error = builder(halved, ("1F1B", 2), (2, 1)).build().unwrap_err().to_string();
    assert!(error.contains("another reparameterization, cannot be cut here"), "{error}");
}
