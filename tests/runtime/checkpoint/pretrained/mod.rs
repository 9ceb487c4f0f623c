//! Weights from another program: a small Llama that Hugging Face's `transformers` 5.23 stored, and that PyTorch
//! 2.15 ran and trained (`goldens/llama.py`).

mod as_list;
mod folder;
mod llama;
mod own_names;
mod pytorch;
mod rules;
mod shards;

use super::{on_each_rank, weights};
use crate::cases::read;
use crate::shared::model::{SMALL, Text, declared, stage as tied_stage};
use burn::nn::LinearConfig;
use burn::optim::SgdConfig;
use burn::store::burn_pack::Tensor as Stored;
use burn::store::{BurnToPyTorchAdapter, ModuleAdapter, ModuleContext, PyTorchToBurnAdapter, SafetensorsStore, bridge};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_pipeline::payload::AnyTensor;
use burn_pipeline::schedule::Size;
use burn_pipeline::stage::{Batch, Names, StageBox};
use burn_pipeline::train::{Builder, CheckpointError, Pipeline, Pretrained, StageContext};
use llama::Signal;
use pipeline_tests::layers::Layer;
use safetensors::SafeTensors;
use safetensors::tensor::{TensorView, serialize_to_file};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tempfile::{TempDir, tempdir};

const SAMPLES: usize = 4;
const LENGTH: usize = 8;
/// The script's SGD steps, and their rate.
const STEPS: usize = 3;
const RATE: f64 = 0.05;

const MODEL: &[u8] = include_bytes!("goldens/model.safetensors");
const TUNED: &[u8] = include_bytes!("goldens/tuned.safetensors");
const COMPUTED: &[u8] = include_bytes!("goldens/computed.safetensors");

fn builder(schedule: &str, ranks: usize, chunks: usize) -> Builder {
    let size = Size { ranks, chunks, microbatches: 2 };
    let builder = Pipeline::builder().schedule(schedule, size).devices(vec![Device::flex()]);
    builder.stages(llama::stage).optimizer(|| SgdConfig::new().init())
}

/// The tensors of a safetensors file: shape and values.
fn floats(file: &[u8]) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let number = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
    let values = |view: &TensorView| view.data().chunks(4).map(number).collect();
    let tensors = SafeTensors::deserialize(file).unwrap().tensors().into_iter();
    tensors.map(|(name, view)| (name, (view.shape().to_vec(), values(&view)))).collect()
}

fn tokens(name: &str) -> Tensor<2, Int> {
    let computed = SafeTensors::deserialize(COMPUTED).unwrap();
    let number = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().unwrap());
    let values: Vec<i64> = computed.tensor(name).unwrap().data().chunks(8).map(number).collect();
    Tensor::from_data(TensorData::new(values, [SAMPLES, LENGTH]), &Device::flex())
}

fn batch() -> Batch {
    Batch::new(Signal::Tokens(tokens("tokens"))).target(tokens("targets"))
}

fn logits(pipeline: &mut Pipeline) -> Vec<f32> {
    let Signal::Hidden(logits) = pipeline.eval(batch()).unwrap().output().unwrap() else {
        panic!("token ids came out")
    };
    read(&AnyTensor::new(logits))
}

fn assert_close(got: &[f32], expected: &[f32], off: f32, place: &str) {
    assert_eq!(got.len(), expected.len(), "{place}");
    let distance = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(distance <= off, "{place}: {distance:e} off");
}

/// Stores the model's file, and reads weights from it.
fn stored(folder: &TempDir) -> Pretrained {
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, MODEL).unwrap();
    from(path)
}

fn from(path: PathBuf) -> Pretrained {
    Pretrained::new(move || SafetensorsStore::from_file(&path)).adapter(PyTorchToBurnAdapter)
}

fn exported(pipeline: &mut Pipeline, path: &Path) -> Vec<u8> {
    pipeline.export_as(path, BurnToPyTorchAdapter).unwrap();
    std::fs::read(path).unwrap()
}

#[test]
fn a_llama_of_hugging_face_computes_trains_and_goes_back_as_in_pytorch_whatever_the_cut() {
    let folder = tempdir().unwrap();
    let model = stored(&folder);
    let computed = floats(COMPUTED);
    for (schedule, ranks, chunks) in [("GPipe", 1, 1), ("1F1B", 2, 1), ("1F1B", 4, 1), ("ZBVZeroBubble", 2, 2)] {
        let place = format!("{schedule} on {ranks}");
        let mut pipeline = builder(schedule, ranks, chunks).build().unwrap();
        pipeline.load_pretrained(&model).unwrap();
        assert_close(&logits(&mut pipeline), &computed["logits"].1, 1e-4, &place);
        assert!(
            floats(&exported(&mut pipeline, &folder.path().join("back"))) == floats(MODEL),
            "{place}: other weights"
        );

        let losses: Vec<f32> = (0..STEPS).map(|_| pipeline.step(batch(), RATE).unwrap().loss as f32).collect();
        assert_close(&losses, &computed["losses"].1, 1e-5, &place);
        let (tuned, expected) = (floats(&exported(&mut pipeline, &folder.path().join("tuned"))), floats(TUNED));
        assert_eq!(tuned.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        for (name, (shape, values)) in &tuned {
            assert_eq!(*shape, expected[name].0, "{place}: {name}");
            assert_close(values, &expected[name].1, 1e-5, &format!("{place}: {name}"));
        }
    }
}

#[test]
fn ranks_that_are_apart_load_and_export_what_threads_do() {
    let folder = tempdir().unwrap();
    let model = stored(&folder);
    for (schedule, chunks, replicas, sharded) in
        [("1F1B", 1, 1, false), ("DualPipe", 1, 1, false), ("1F1B", 1, 2, false), ("GPipe", 1, 2, true)]
    {
        let mut builder = builder(schedule, 2, chunks).data_parallel(replicas).sharded(sharded);
        if schedule == "DualPipe" {
            builder = builder.schedule(schedule, Size { ranks: 2, chunks, microbatches: 4 });
        }
        on_each_rank(&builder, 2 * replicas, |rank, pipeline| {
            pipeline.load_pretrained(&model).unwrap();
            // The first rank's path is used.
            pipeline
                .export_as(folder.path().join(if rank == 0 { "apart" } else { "no/file" }), BurnToPyTorchAdapter)
                .unwrap();
        });
        let apart = std::fs::read(folder.path().join("apart")).unwrap();
        assert!(floats(&apart) == floats(MODEL), "{schedule}, {replicas} replicas, sharded: {sharded}");
    }
}

/// Asserts that loading is refused without changes; returns the missing, mismatched and unused names.
fn refused(builder: &Builder, pretrained: &Pretrained) -> [Vec<String>; 3] {
    let mut pipeline = builder.clone().build().unwrap();
    let before = weights(&mut pipeline);
    let error = pipeline.load_pretrained(pretrained).unwrap_err();
    assert_eq!(weights(&mut pipeline), before, "{error}");
    let message = error.to_string();
    let CheckpointError::Pretrained { missing, mismatched, unused } = error else { panic!("{error}") };
    for name in missing.iter().chain(&mismatched).chain(&unused) {
        assert!(message.contains(name), "{name} is not in: {message}");
    }
    [missing, mismatched, unused]
}

#[test]
fn all_that_does_not_fit_is_listed_and_changes_nothing() {
    let folder = tempdir().unwrap();
    let model = stored(&folder);
    let two = builder("1F1B", 2, 1);

    // The head has another name: it is missing, and its stored values are unused.
    let renamed = two.clone().stages(|at| {
        let share = at.layers(4);
        let names = Names::default().layers_from("layers", share.start).renamed(|name| format!("model.{name}"));
        llama::stage(at).named(names)
    });
    let [missing, mismatched, unused] = refused(&renamed, &model);
    assert_eq!(
        (&*missing, &*mismatched, &*unused),
        (&["model.lm_head.weight".to_owned()][..], &[][..], &["lm_head.weight".to_owned()][..])
    );
    // With `optional` and `ignored` it is accepted.
    let allowed =
        model.clone().optional(|name| name == "model.lm_head.weight").ignored(|name| name == "lm_head.weight");
    let mut pipeline = renamed.clone().build().unwrap();
    let before = pipeline.named_weights().unwrap();
    pipeline.load_pretrained(&allowed).unwrap();
    let after = pipeline.named_weights().unwrap();
    for (before, after) in before.iter().flatten().zip(after.iter().flatten()) {
        let kept = read(&before.value) == read(&after.value);
        assert_eq!(kept, after.names[0] == "model.lm_head.weight", "{:?}", after.names);
    }

    // Without an adapter, every matrix that is not square has another shape, and norms have other names.
    let path = folder.path().join("model.safetensors");
    let plain = Pretrained::new(move || SafetensorsStore::from_file(&path));
    let [missing, mismatched, unused] = refused(&two, &plain);
    assert!(missing.len() == 9 && missing.iter().all(|name| name.ends_with("norm.gamma")), "{missing:?}");
    assert!(unused.len() == 9 && unused.iter().all(|name| name.ends_with("norm.weight")), "{unused:?}");
    // Keys, values, gate, up and down of four layers, and the head.
    assert_eq!(mismatched.len(), 4 * 5 + 1);
    assert!(
        mismatched.contains(
            &"`lm_head.weight` is [40, 16] of F32, the model's `lm_head.weight` is [16, 40] of F32".to_owned()
        ),
        "{mismatched:?}"
    );
}

#[test]
fn stores_that_cannot_be_read_or_hold_a_name_twice_are_refused() {
    let folder = tempdir().unwrap();
    let model = stored(&folder);
    let mut pipeline = builder("1F1B", 2, 1).build().unwrap();
    let path = folder.path().join("model.safetensors");
    for (weights, says) in [
        (
            from(folder.path().join("none")),
            "store 0 of the pretrained weights, counted from 0, cannot be read: I/O error",
        ),
        (
            model.clone().and(move || SafetensorsStore::from_file(&path)),
            "store 1 of the pretrained weights, counted from 0, cannot be read: \
             an earlier store holds `lm_head.weight` too",
        ),
    ] {
        let error = pipeline.load_pretrained(&weights).unwrap_err();
        assert!(error.to_string().starts_with(says), "{error}");
    }
    pipeline.load_pretrained(&model).unwrap();
}

/// Negates the queries of one layer, by its name in the model, and otherwise does what PyTorch's adapter does.
#[derive(Clone)]
struct Negated(&'static str);

impl ModuleAdapter for Negated {
    fn adapt(&self, tensor: Stored, _: ModuleContext<'_>) -> Stored {
        if tensor.name != self.0 {
            return tensor;
        }
        let (name, dtype, shape) = (tensor.name.clone(), tensor.dtype, tensor.shape.clone());
        bridge::map_data(tensor, name, dtype, shape, |data| {
            let negated: Vec<f32> = data.iter::<f32>().map(|value| -value).collect();
            TensorData::new(negated, data.shape().to_vec())
        })
    }

    fn clone_box(&self) -> Box<dyn ModuleAdapter> {
        Box::new(self.clone())
    }
}

#[test]
fn an_adapter_sees_names_in_the_model_and_one_that_changes_nothing_is_refused() {
    let folder = tempdir().unwrap();
    stored(&folder);
    let path = folder.path().join("model.safetensors");
    let adapted = |adapter: Negated| {
        let path = path.clone();
        let chain = PyTorchToBurnAdapter.chain(adapter);
        Pretrained::new(move || SafetensorsStore::from_file(&path)).adapter(chain)
    };
    let queries = "model.layers.3.self_attn.q_proj.weight";
    let weights = |pipeline: &mut Pipeline| -> BTreeMap<String, Vec<f32>> {
        let weights = pipeline.named_weights().unwrap().into_iter().flatten();
        weights.map(|weight| (weight.names[0].clone(), read(&weight.value))).collect()
    };
    let mut plain = builder("GPipe", 1, 1).build().unwrap();
    plain.load_pretrained(&from(path.clone())).unwrap();
    let expected = weights(&mut plain);
    assert!(expected.contains_key(queries), "{:?}", expected.keys());
    // Layer 3 is layer 0 of the last of four stages.
    for ranks in [1, 4] {
        let mut pipeline = builder("1F1B", ranks, 1).build().unwrap();
        pipeline.load_pretrained(&adapted(Negated(queries))).unwrap();
        for (name, values) in weights(&mut pipeline) {
            let sign = if name == queries { -1.0 } else { 1.0 };
            assert!(values.iter().zip(&expected[&name]).all(|(got, plain)| *got == sign * plain), "{ranks}: {name}");
        }
    }
    // Alone, and for a name that the model does not have, it does nothing.
    let layer = |at: &StageContext| StageBox::new(Layer { linear: LinearConfig::new(3, 3).init(&at.device) });
    let one = Pipeline::builder().schedule("GPipe", Size::new(1, 1)).devices(vec![Device::flex()]);
    let mut one = one.stages(layer).build().unwrap();
    let before = one.named_weights().unwrap();
    let file = folder.path().join("own");
    one.export(&file).unwrap();
    let idle = Pretrained::new(move || SafetensorsStore::from_file(&file)).adapter(Negated("layers.0.q_proj.weight"));
    let error = one.load_pretrained(&idle).unwrap_err();
    assert!(matches!(error, CheckpointError::IdleAdapter { .. }), "{error}");
    assert!(error.to_string().contains("`linear."), "{error}");
    assert_eq!(format!("{:?}", one.named_weights().unwrap()), format!("{before:?}"));
}

/// PyTorch's adapter, which also records every tensor that is read.
#[derive(Clone, Default)]
struct Noted(Arc<Mutex<Vec<(usize, usize)>>>);

impl ModuleAdapter for Noted {
    fn adapt(&self, tensor: Stored, at: ModuleContext<'_>) -> Stored {
        let (tensor, noted) = (PyTorchToBurnAdapter.adapt(tensor, at), self.0.clone());
        let (name, dtype, shape) = (tensor.name.clone(), tensor.dtype, tensor.shape.clone());
        // Threads are named after their ranks: `rank 2 compute 0`.
        let rank = std::thread::current().name().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        bridge::map_data(tensor, name, dtype, shape, move |data| {
            noted.lock().unwrap().push((rank, data.shape().iter().product()));
            data
        })
    }

    fn get_alternative_param_name(&self, name: &str, module: &str) -> Option<String> {
        PyTorchToBurnAdapter.get_alternative_param_name(name, module)
    }

    fn clone_box(&self) -> Box<dyn ModuleAdapter> {
        Box::new(self.clone())
    }
}

#[test]
fn each_rank_reads_the_tensors_of_its_own_stages_from_several_files() {
    let folder = tempdir().unwrap();
    stored(&folder);
    // Two files, split at other layers than the stages.
    let all = SafeTensors::deserialize(MODEL).unwrap().tensors();
    let paths = [folder.path().join("1"), folder.path().join("2")];
    for (half, path) in all.chunks(all.len().div_ceil(2)).zip(&paths) {
        serialize_to_file(half.iter().map(|(name, view)| (name, view)), None, path).unwrap();
    }
    let (noted, [first, second]) = (Noted::default(), paths);
    let files = Pretrained::new(move || SafetensorsStore::from_file(&first)).adapter(noted.clone());
    let files = files.and(move || SafetensorsStore::from_file(&second));
    let mut pipeline = builder("1F1B", 4, 1).build().unwrap();
    pipeline.load_pretrained(&files).unwrap();
    assert_close(&logits(&mut pipeline), &floats(COMPUTED)["logits"].1, 1e-4, "from two files");
    let noted = noted.0.lock().unwrap();
    for (rank, stage) in pipeline.weights().unwrap().iter().enumerate() {
        let of = |sizes: &mut dyn Iterator<Item = usize>| {
            let mut sizes: Vec<usize> = sizes.collect();
            sizes.sort_unstable();
            sizes
        };
        let read = of(&mut noted.iter().filter(|(reader, _)| *reader == rank).map(|(_, size)| *size));
        assert_eq!(read, of(&mut stage.iter().map(|weight| weight.shape().num_elements())), "rank {rank}");
    }
}

#[test]
fn every_copy_of_a_shared_parameter_takes_what_is_stored_of_the_first() {
    let folder = tempdir().unwrap();
    let tied = |ranks| {
        let make = tied_stage(SMALL);
        let builder = Pipeline::builder().schedule("1F1B", Size::new(ranks, 4)).devices(vec![Device::flex()]);
        let builder = builder.optimizer(|| SgdConfig::new().init()).stages(move |at| {
            let (first, index) = (at.layers(SMALL.layers).start, at.index);
            let renamed = move |name: &str| if name == "bias" { format!("biases.{index}") } else { name.to_owned() };
            make(at).named(Names::default().layers_from("blocks", first).renamed(renamed))
        });
        let [tables, bias] = declared();
        builder.share(tables).share(bias).build().unwrap()
    };
    let text = || Text::new(SMALL, 4, 60).batch();
    // One stage stores one table and one bias.
    let mut one = tied(1);
    one.step(text(), RATE).unwrap();
    one.export(folder.path().join("tied")).unwrap();
    let path = folder.path().join("tied");
    let weights = Pretrained::new(move || SafetensorsStore::from_file(&path));
    let expected = one.eval(text()).unwrap().loss.unwrap();
    for ranks in [2, 4] {
        let mut pipeline = tied(ranks);
        pipeline.load_pretrained(&weights).unwrap();
        let loss = pipeline.eval(text()).unwrap().loss.unwrap();
        assert!((loss - expected).abs() <= 1e-6, "{ranks} ranks: {loss} for {expected}");
    }
}
