//! Adapters (Burn's LoRA) train as on one device, are stored alone as PEFT stores them, and come back.

mod peft;

use burn::module::{Lora, Module, ParamGroup};
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::store::{BurnToPyTorchAdapter, PyTorchToBurnAdapter, SafetensorsStore};
use burn::tensor::{Device, Tensor, activation::tanh};
use burn_pipeline::layers::{Layer, LayerContext, Model, Sequential};
use burn_pipeline::stage::{SplitBackward, init_seeded};
use burn_pipeline::train::{Adapters, CheckpointError, Export, Pretrained};
use burn_pipeline::{Accumulation, Batch, Builder, Checkpoints, Pipeline, Size};
use pipeline_tests::device::device;
use pipeline_tests::reference::Reference;
use std::collections::BTreeMap;
use std::path::Path;
use tempfile::{TempDir, tempdir};

const WIDTH: usize = 24;
const LAYERS: usize = 4;
const RANK: usize = 2;
const ALPHA: f64 = 6.0;
const SAMPLES: usize = 8;
const MICROBATCHES: usize = 4;

#[derive(Module, Debug)]
struct Block {
    query: Linear,
    down: Linear,
}

impl Block {
    fn new(adapted: bool, device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        let block = Self { query: linear(WIDTH, 2 * WIDTH), down: linear(2 * WIDTH, WIDTH) };
        let of_query = ParamGroup::from_predicate("query");
        if adapted { block.apply_lora(Lora::new(RANK, ALPHA).set_param_group(of_query)) } else { block }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        x.clone() + self.down.forward(tanh(self.query.forward(x)))
    }
}

/// The model by hand.
#[derive(Module, Debug)]
struct Whole {
    blocks: Vec<Block>,
}

impl Whole {
    fn new() -> Self {
        let device = device().autodiff();
        let block = |layer| init_seeded(layer, &device, |device| Block::new(true, device));
        Self { blocks: (0..LAYERS as u64).map(block).collect() }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.blocks.iter().fold(x, |x, block| block.forward(x))
    }
}

fn loss(y: Tensor<2>, wanted: Tensor<2>) -> Tensor<1> {
    (y - wanted).square().mean()
}

fn model(adapted: bool, seed: u64) -> Model {
    let make = move |at: &LayerContext| Block::new(adapted, &at.device);
    Sequential::new().repeat(LAYERS, Layer::new("blocks", make, Block::forward)).seed(seed).loss(loss)
}

fn builder(schedule: &str, ranks: usize) -> Builder {
    Pipeline::builder()
        .layers(model(true, 0))
        .schedule(schedule, Size::new(ranks, MICROBATCHES))
        .devices(vec![device()])
        .accumulation(Accumulation::Ordered)
        .optimizer(|| AdamWConfig::new().with_weight_decay(0.1).init())
}

fn data(step: usize) -> [Tensor<2>; 2] {
    let values = |seed| pipeline_tests::noise::noise(seed + step as u64, SAMPLES * WIDTH);
    [11, 77].map(|seed| Tensor::<1>::from_floats(&*values(seed), &device()).reshape([SAMPLES, WIDTH]))
}

fn batch(step: usize) -> Batch {
    let [x, wanted] = data(step);
    Batch::new(x).target(wanted)
}

fn named(pipeline: &mut Pipeline) -> BTreeMap<String, Vec<f32>> {
    let weights = pipeline.named_weights().unwrap().into_iter().flatten();
    weights.map(|w| (w.names[0].clone(), w.value.to_data().unwrap().iter().collect())).collect()
}

fn is_adapter(name: &str) -> bool {
    name.contains(".lora.")
}

#[test]
fn adapters_train_as_on_one_device_and_leave_the_base_as_it_was() {
    let optimizer = AdamWConfig::new().with_weight_decay(0.1).init();
    let mut plain = Reference::resumed(Whole::new(), optimizer);
    let losses: Vec<f64> = (0..3)
        .map(|step| {
            let ([x, wanted], size) = (data(step), SAMPLES / MICROBATCHES);
            let part = |tensor: &Tensor<2>, i| tensor.clone().narrow(0, i * size, size).autodiff();
            let of = |whole: &Whole, i| loss(whole.forward(part(&x, i)), part(&wanted, i));
            plain.step(&[size; MICROBATCHES], 1e-2, None, of).loss
        })
        .collect();
    let expected = pipeline_tests::reference::weights(&plain.model);
    for (schedule, ranks) in [("GPipe", 1), ("1F1B", 2), ("ZBH1", 4), ("1F1B", 3)] {
        for split in [SplitBackward::Eager, SplitBackward::Auto] {
            for replicas in [1, 2] {
                let size = Size::new(ranks, MICROBATCHES / replicas);
                let builder = builder(schedule, ranks).split(split).schedule(schedule, size);
                let builder = builder.data_parallel(replicas).sharded(replicas > 1);
                let mut pipeline = builder.build().unwrap();
                let before = named(&mut pipeline);
                for (step, loss) in losses.iter().enumerate() {
                    assert_eq!(pipeline.step(batch(step), 1e-2).unwrap().loss, *loss, "{schedule}, {ranks}, {split:?}");
                }
                let after = named(&mut pipeline);
                let weights: Vec<Vec<f32>> = pipeline.weights().unwrap().into_iter().flatten().map(values).collect();
                assert!(weights == expected, "{schedule}, {ranks}, {split:?}, {replicas}");
                for (name, value) in after {
                    assert_eq!(value == before[&name], !is_adapter(&name), "{name}");
                }
            }
        }
    }
}

fn values(weight: burn_pipeline::payload::AnyTensor) -> Vec<f32> {
    weight.to_data().unwrap().iter().collect()
}

/// The names, shapes and values of a file, read by the crate `safetensors`.
fn stored(path: &Path) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let bytes = std::fs::read(path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let floats = |bytes: &[u8]| bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let tensors = file.tensors().into_iter();
    tensors.map(|(name, view)| (name, (view.shape().to_vec(), floats(view.data())))).collect()
}

/// A pipeline whose adapters were trained, and the folder of these.
fn trained(folder: &TempDir) -> (Pipeline, Pretrained) {
    let mut pipeline = builder("1F1B", 2).build().unwrap();
    (0..2).for_each(|step| drop(pipeline.step(batch(step), 1e-2).unwrap()));
    let base = Pretrained::folder("nowhere").rename("model.layers.{i}.attention.q_proj", "blocks.{i}.query");
    let adapters = Adapters { rank: RANK, alpha: ALPHA, base: Some("base".to_owned()) };
    let files = folder.path().join("adapters");
    pipeline.export_as(&files, Export::adapters(adapters).like(&base)).unwrap();
    let weights = Pretrained::adapters(&files).rename("model.layers.{i}.attention.q_proj", "blocks.{i}.query");
    (pipeline, weights)
}

#[test]
fn adapters_are_stored_alone_as_peft_stores_them() {
    let folder = tempdir().unwrap();
    let (mut pipeline, _) = trained(&folder);
    let files = folder.path().join("adapters");
    let own = named(&mut pipeline);
    let stored = stored(&files.join("adapter_model.safetensors"));
    assert_eq!(stored.len(), 2 * LAYERS);
    for layer in 0..LAYERS {
        let peft = |factor| format!("base_model.model.model.layers.{layer}.attention.q_proj.{factor}.weight");
        let (shape, a) = &stored[&peft("lora_A")];
        assert_eq!(*shape, [RANK, WIDTH]);
        let (shape, b) = &stored[&peft("lora_B")];
        assert_eq!(*shape, [2 * WIDTH, RANK]);
        // [in, rank] and [rank, out] in Burn.
        let (own_a, own_b) = (
            &own[&format!("blocks.{layer}.query.weight.lora.a")],
            &own[&format!("blocks.{layer}.query.weight.lora.b")],
        );
        for rank in 0..RANK {
            assert!((0..WIDTH).all(|i| a[rank * WIDTH + i] == own_a[i * RANK + rank]));
            assert!((0..2 * WIDTH).all(|o| b[o * RANK + rank] == own_b[rank * 2 * WIDTH + o]));
        }
    }
    let config: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(files.join("adapter_config.json")).unwrap()).unwrap();
    assert_eq!(config["peft_type"], "LORA");
    assert_eq!((config["r"].as_u64(), config["lora_alpha"].as_f64()), (Some(RANK as u64), Some(ALPHA)));
    assert_eq!(config["target_modules"], serde_json::json!(["q_proj"]));
    let read = Adapters::read(&files).unwrap();
    assert_eq!(read, Adapters { rank: RANK, alpha: ALPHA, base: Some("base".to_owned()) });
    assert_eq!(Adapters::targets(&files).unwrap(), ["q_proj"]);
    let all = serde_json::json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": "all-linear"});
    std::fs::write(files.join("adapter_config.json"), all.to_string()).unwrap();
    assert_eq!(Adapters::read(&files).unwrap(), Adapters { rank: 2, alpha: 4.0, base: None });
    let error = Adapters::targets(&files).unwrap_err().to_string();
    assert!(error.contains("`target_modules` is no list"), "{error}");
}

#[test]
fn stored_adapters_come_back_over_other_ranks() {
    let folder = tempdir().unwrap();
    let (mut first, weights) = trained(&folder);
    // The same base with fresh adapters.
    let mut second = builder("ZBH1", 4).build().unwrap();
    assert_ne!(second.eval(batch(5)).unwrap().loss, first.eval(batch(5)).unwrap().loss);
    second.load_pretrained(&weights).unwrap();
    assert_eq!(second.eval(batch(5)).unwrap().loss, first.eval(batch(5)).unwrap().loss);
    assert!(named(&mut second) == named(&mut first));
}

#[test]
fn a_base_is_loaded_into_a_model_that_gained_adapters() {
    let folder = tempdir().unwrap();
    let plain = |seed| {
        let builder = Pipeline::builder().layers(model(false, seed)).schedule("1F1B", Size::new(2, MICROBATCHES));
        builder.devices(vec![device()]).optimizer(|| AdamWConfig::new().init()).build().unwrap()
    };
    let mut base = plain(3);
    let (file, checkpoints) = (folder.path().join("base.safetensors"), Checkpoints::new(folder.path().join("saved")));
    base.export(&file).unwrap();
    base.save(&checkpoints, &()).unwrap();
    let expected = base.eval(batch(0)).unwrap().loss;
    let pretrained = Pretrained::new(move || burn::store::SafetensorsStore::from_file(&file));
    for from_checkpoint in [false, true] {
        let mut adapted = builder("1F1B", 3).build().unwrap();
        match from_checkpoint {
            false => adapted.load_pretrained(&pretrained).unwrap(),
            true => adapted.load_weights(&checkpoints.latest().unwrap()).unwrap(),
        }
        // An adapter adds nothing before it was trained.
        assert_eq!(adapted.eval(batch(0)).unwrap().loss, expected);
        let (own, of_base) = (named(&mut adapted), named(&mut base));
        assert!(of_base.iter().all(|(name, value)| own[name] == *value));
    }
    // A job is not resumed without its adapters.
    let refused = builder("1F1B", 3).build().unwrap().load(&checkpoints.latest().unwrap()).unwrap_err();
    assert!(matches!(&refused, CheckpointError::MissingParameter { name, .. } if is_adapter(name)), "{refused}");
}

/// The rules of a base whose queries rotate halves.
fn in_halves(weights: Pretrained) -> Pretrained {
    let weights = weights.rename("model.layers.{i}.attention.q_proj", "blocks.{i}.query");
    weights.halves_to_pairs("blocks.{i}.query", 2)
}

#[test]
fn adapters_follow_rotary_rows_that_their_base_has_in_another_order() {
    let folder = tempdir().unwrap();
    let (mut first, _) = trained(&folder);
    let (base, merged, files) =
        (folder.path().join("base"), folder.path().join("merged"), folder.path().join("in_halves"));
    let like = || in_halves(Pretrained::folder("nowhere"));
    let as_folder = || Export::from(BurnToPyTorchAdapter).like(&like()).sharded(1 << 30);
    let plain = |seed| Pipeline::builder().layers(model(false, seed)).schedule("GPipe", Size::new(1, 1));
    plain(0).devices(vec![device()]).build().unwrap().export_as(&base, as_folder()).unwrap();
    first.export_as(&merged, as_folder().merged()).unwrap();
    let adapters = || Adapters { rank: RANK, alpha: ALPHA, base: None };
    first.export_as(&files, Export::adapters(adapters()).like(&like())).unwrap();
    // What PEFT computes of the three files: the base, and the scaled product of both factors.
    let of_base = stored(&base.join("model.safetensors"));
    let of_merged = stored(&merged.join("model.safetensors"));
    let factors = stored(&files.join("adapter_model.safetensors"));
    for layer in 0..LAYERS {
        let name = format!("model.layers.{layer}.attention.q_proj");
        let factor = |of: &str| &factors[&format!("base_model.model.{name}.{of}.weight")].1;
        let (a, b) = (factor("lora_A"), factor("lora_B"));
        let (whole, without) = (&of_merged[&format!("{name}.weight")].1, &of_base[&format!("{name}.weight")].1);
        for (place, value) in whole.iter().enumerate() {
            let (row, column) = (place / WIDTH, place % WIDTH);
            let product: f32 = (0..RANK).map(|rank| b[row * RANK + rank] * a[rank * WIDTH + column]).sum();
            let expected = without[place] + (ALPHA / RANK as f64) as f32 * product;
            assert!((value - expected).abs() < 1e-6, "{name}: {value} for {expected} at {row}, {column}");
        }
        assert_ne!(*without, *whole, "{name} was trained");
    }
    let mut second = builder("1F1B", 2).layers(model(true, 9)).build().unwrap();
    second.load_pretrained(&in_halves(Pretrained::folder(&base)).adapter(PyTorchToBurnAdapter)).unwrap();
    let renamed = |weights: Pretrained| weights.rename("model.layers.{i}.attention.q_proj", "blocks.{i}.query");
    let refused = second.load_pretrained(&renamed(Pretrained::adapters(&files))).unwrap_err();
    assert!(matches!(&refused, CheckpointError::Unturned { name, .. } if name == "blocks.0.query.weight"), "{refused}");
    // A job that loads such weights from a checkpoint knows it too.
    let checkpoints = Checkpoints::new(folder.path().join("saved"));
    second.save(&checkpoints, &()).unwrap();
    let mut resumed = builder("GPipe", 2).layers(model(true, 5)).build().unwrap();
    resumed.load(&checkpoints.latest().unwrap()).unwrap();
    let refused = resumed.load_pretrained(&renamed(Pretrained::adapters(&files))).unwrap_err();
    assert!(matches!(&refused, CheckpointError::Unturned { name, .. } if name == "blocks.0.query.weight"), "{refused}");
    // Nor does the order of the two loads matter.
    let mut other = builder("1F1B", 2).layers(model(true, 9)).build().unwrap();
    other.load_pretrained(&renamed(Pretrained::adapters(&files))).unwrap();
    let refused =
        other.load_pretrained(&in_halves(Pretrained::folder(&base)).adapter(PyTorchToBurnAdapter)).unwrap_err();
    assert!(matches!(&refused, CheckpointError::Unturned { name, .. } if name == "blocks.0.query.weight"), "{refused}");
    assert!(refused.to_string().contains("those of its adapter not reordered"), "{refused}");
    // Rules of layers that have no adapters need not match.
    let of_base = |weights| in_halves(weights).rename("model.layers.{i}.mlp.down_proj", "blocks.{i}.down");
    second.load_pretrained(&of_base(Pretrained::adapters(&files))).unwrap();
    let (got, expected) = (named(&mut second), named(&mut first));
    for (name, values) in expected.iter().filter(|(name, _)| name.contains("query.weight")) {
        assert!(got[name] == *values, "{name}");
    }
    let refused = second.export_as(folder.path().join("wrong"), Export::adapters(adapters())).unwrap_err().to_string();
    assert!(refused.contains("the rows of `blocks.0.query.weight` were reordered"), "{refused}");
    // A file in the model's own order replaces both.
    let own = folder.path().join("own.safetensors");
    second.export(&own).unwrap();
    second.load_pretrained(&Pretrained::new(move || SafetensorsStore::from_file(&own))).unwrap();
    second.export_as(folder.path().join("right"), Export::adapters(adapters())).unwrap();
    // A base that is no longer the one that was loaded would be left out.
    second
        .replace_layer(1, |mut block: Block, _: &LayerContext| {
            block.down.weight = block.down.weight.map(|weight| (weight.detach() * 1.5).detach());
            block
        })
        .unwrap();
    let refused = second.export_as(folder.path().join("less"), Export::adapters(adapters())).unwrap_err();
    let CheckpointError::LeftOut { names } = &refused else { panic!("{refused}") };
    assert_eq!(*names, ["`blocks.1.down.weight`"]);
    // Nor does a job that goes on over its base have that base.
    let saved = Checkpoints::new(folder.path().join("saved"));
    second.save(&saved, &()).unwrap();
    second.load(&saved.latest().unwrap()).unwrap();
    let refused = second.export_as(folder.path().join("less"), Export::adapters(adapters())).unwrap_err();
    assert!(matches!(&refused, CheckpointError::LeftOut { names: resumed } if resumed == names), "{refused}");
}

#[test]
fn adapters_that_would_be_wrong_are_refused() {
    let folder = tempdir().unwrap();
    let (mut pipeline, weights) = trained(&folder);
    let adapters = || Adapters { rank: RANK, alpha: ALPHA, base: None };
    // Rules that change weights would have to change factors.
    let fused = Pretrained::folder("nowhere").split("blocks.{i}.query", 0, &[("q", WIDTH), ("k", WIDTH)]);
    let error = pipeline.export_as(folder.path().join("fused"), Export::adapters(adapters()).like(&fused)).unwrap_err();
    assert!(error.to_string().contains("adapters cannot follow"), "{error}");
    // A model without adapters has nothing to write, and nowhere to load to.
    let mut plain = Pipeline::builder()
        .layers(model(false, 0))
        .schedule("GPipe", Size::new(1, 1))
        .devices(vec![device()])
        .build()
        .unwrap();
    let error = plain.export_as(folder.path().join("none"), Export::adapters(adapters())).unwrap_err();
    assert!(matches!(error, CheckpointError::LeftOut { .. }), "{error}");
    assert!(!folder.path().join("none").exists());
    let error = plain.load_pretrained(&weights).unwrap_err();
    assert!(error.to_string().contains("lora.a"), "{error}");
    // DoRA computes other than LoRA.
    let config = folder.path().join("adapters").join("adapter_config.json");
    let text = std::fs::read_to_string(&config).unwrap().replace("\"use_dora\": false", "\"use_dora\": true");
    std::fs::write(&config, text).unwrap();
    let error = Adapters::read(folder.path().join("adapters")).unwrap_err();
    assert!(error.to_string().contains("use_dora"), "{error}");
}
