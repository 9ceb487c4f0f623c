//! Checkpoints, exports and pretrained weights of tensor-parallel models: one model, whatever grid holds it.

use crate::model::{Grid, batch, builder, weights};
use crate::plain::{Plain, SMALL};
use burn::module::Module;
use burn::nn::LinearConfig;
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::store::{BurnToPyTorchAdapter, IdentityAdapter, PyTorchToBurnAdapter, SafetensorsStore};
use burn::tensor::{Device, Int, Tensor};
use burn_pipeline::link::Threads;
use burn_pipeline::nn::ColumnLinear;
use burn_pipeline::stage::{Names, Stage, StageBox, named_weights};
use burn_pipeline::tensor_parallel::TensorGroup;
use burn_pipeline::train::{Checkpoint, Checkpoints, Export, Pretrained};
use burn_pipeline::{Batch, Builder, Pipeline, Size, init_seeded};
use pipeline_tests::reference::{self, Reference};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tempfile::{TempDir, tempdir};

const RATE: f64 = 0.01;
const GRIDS: [Grid; 5] = [(1, 1, 1), (2, 1, 1), (1, 1, 2), (2, 1, 2), (2, 2, 2)];

fn optimizer() -> ModuleOptimizer {
    AdamWConfig::new().init()
}

fn adamw(grid: Grid) -> Builder {
    builder(("1F1B", 1), grid).optimizer(optimizer)
}

fn step(pipeline: &mut Pipeline) -> f64 {
    pipeline.step(batch(&SMALL, 8), RATE).unwrap().loss
}

/// A checkpoint after two steps on a grid.
fn saved(grid: Grid, folder: &TempDir) -> (Pipeline, Checkpoint) {
    let mut pipeline = adamw(grid).build().unwrap();
    step(&mut pipeline);
    step(&mut pipeline);
    let path = pipeline.save(&Checkpoints::new(folder.path().join(format!("{grid:?}"))), &7_u32).unwrap();
    (pipeline, Checkpoint::open(path).unwrap())
}

fn bytes(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

#[test]
fn a_checkpoint_of_any_grid_is_resumed_on_any_other() {
    let folder = tempdir().unwrap();
    for from in [GRIDS[0], GRIDS[3], GRIDS[4]] {
        let (mut pipeline, checkpoint) = saved(from, &folder);
        let held = weights(&mut pipeline);
        let exported = folder.path().join("from.safetensors");
        pipeline.export(&exported).unwrap();
        let losses = [step(&mut pipeline), step(&mut pipeline)];
        for (to, sharded) in GRIDS.map(|grid| (grid, false)).into_iter().chain([(GRIDS[4], true)]) {
            let place = format!("from {from:?} to {to:?}, sharded: {sharded}");
            let mut resumed = adamw(to).sharded(sharded).build().unwrap();
            resumed.load(&checkpoint).unwrap();
            assert_eq!(resumed.progress().steps, 2);
            assert!(weights(&mut resumed) == held, "{place}: other weights");
            let again = folder.path().join("to.safetensors");
            resumed.export(&again).unwrap();
            assert!(bytes(&again) == bytes(&exported), "{place}: another export");
            let saved = resumed.save(&Checkpoints::new(folder.path().join("again")), &()).unwrap();
            assert!(state(&Checkpoint::open(saved).unwrap()) == state(&checkpoint), "{place}: another state");
            // Without the saved moments, the next step would change every weight by as much as the learning rate.
            for expected in losses {
                let loss = step(&mut resumed);
                assert!((loss - expected).abs() < 1e-5 * expected, "{place}: loss {loss} for {expected}");
            }
        }
    }
}

/// The weights and moments in a checkpoint, as shown by the ordinary model's next step.
fn state(checkpoint: &Checkpoint) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let mut plain = resumed(checkpoint);
    let loaded = plain.weights();
    plain_step(&mut plain);
    (loaded, plain.weights())
}

/// The ordinary model with the weights and the optimizer of a checkpoint.
fn resumed(checkpoint: &Checkpoint) -> Reference<Plain> {
    let names = Names::default();
    let model = checkpoint.load_module(SMALL.plain(), &names).unwrap();
    let optimizer = checkpoint.load_optimizer(optimizer(), &model, &names).unwrap();
    Reference::resumed(model, optimizer)
}

fn plain_step(reference: &mut Reference<Plain>) -> f64 {
    let (tokens, targets) = SMALL.data(8);
    let step = reference.step(&[2; 4], RATE, None, |model: &Plain, i| {
        let rows = 2 * i..2 * i + 2;
        let (tokens, targets) = (tokens.clone().slice([rows.clone()]), targets.clone().slice([rows]));
        model.loss(tokens.autodiff(), targets.autodiff())
    });
    step.loss
}

#[test]
fn a_checkpoint_of_a_group_is_the_ordinary_models() {
    let folder = tempdir().unwrap();
    let (mut pipeline, checkpoint) = saved((2, 1, 2), &folder);
    let mut plain = resumed(&checkpoint);
    assert_eq!(plain.weights(), weights(&mut pipeline));
    for _ in 0..2 {
        let (expected, loss) = (plain_step(&mut plain), step(&mut pipeline));
        assert!((loss - expected).abs() < 1e-5 * expected, "loss {loss} for {expected}");
    }
    let mut names: Vec<&str> = checkpoint.parameters().iter().map(|parameter| parameter.names[0].as_str()).collect();
    let ordinary = named_weights(&plain.model, &Names::default());
    let mut expected: Vec<&str> = ordinary.iter().map(|weight| weight.names[0].as_str()).collect();
    names.sort_unstable();
    expected.sort_unstable();
    assert_eq!(names, expected);
    let parameter = |name: &str| checkpoint.parameters().iter().find(|parameter| parameter.names[0] == name).unwrap();
    for (name, shape) in [
        ("blocks.3.feed.down.weight", vec![12, 8]),
        ("head.scores.bias", vec![20]),
        ("embed.token.weight", vec![20, 8]),
    ] {
        assert_eq!(parameter(name).shape, shape, "{name}");
        assert!(parameter(name).optimizer_fields().any(|field| field.ends_with("moment_1")), "{name}");
    }
}

#[test]
fn pretrained_weights_are_loaded_in_pieces_and_given_back_in_their_layout() {
    let folder = tempdir().unwrap();
    let (mut one, file) = (adamw((1, 1, 1)).build().unwrap(), folder.path().join("one.safetensors"));
    step(&mut one);
    one.export_as(&file, BurnToPyTorchAdapter).unwrap();
    for grid in GRIDS {
        let mut pipeline = adamw(grid).build().unwrap();
        let path = file.clone();
        let stored = Pretrained::new(move || SafetensorsStore::from_file(&path)).adapter(PyTorchToBurnAdapter);
        pipeline.load_pretrained(&stored).unwrap();
        assert!(weights(&mut pipeline) == weights(&mut one), "{grid:?}");
        let again = folder.path().join("again.safetensors");
        pipeline.export_as(&again, BurnToPyTorchAdapter).unwrap();
        assert!(bytes(&again) == bytes(&file), "{grid:?}");
        step(&mut pipeline);
    }
}

/// One layer at two paths.
#[derive(Module, Debug)]
struct Tied {
    first: ColumnLinear,
    second: ColumnLinear,
    #[module(skip)]
    group: TensorGroup,
}

impl Stage for Tied {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        let x = self.group.gather_from(self.first.forward(x), 1);
        self.group.gather_from(self.second.forward(x.tanh()), 1)
    }
}

#[test]
fn a_cut_layer_at_two_paths_is_saved_once_and_resumed() {
    let folder = tempdir().unwrap();
    let build = |members| {
        let builder = Pipeline::builder().schedule("GPipe", Size::new(1, 2)).devices(vec![Device::flex()]);
        let builder = builder.stages(|at| {
            let linear = init_seeded(5, &at.device, |device| LinearConfig::new(4, 4).init(device));
            let first = ColumnLinear::cut(linear, &at.group);
            let tied = Tied { second: first.clone(), first, group: at.group.clone() };
            StageBox::with_loss(tied, |y: Tensor<2>, t: Tensor<2>| (y - t).square().mean())
        });
        builder.optimizer(optimizer).tensor_parallel(members).build().unwrap()
    };
    let x = Tensor::<1, Int>::arange(0..16, &Device::flex()).float().reshape([4, 4]);
    let step = |pipeline: &mut Pipeline| {
        pipeline.step(Batch::new(x.clone().sin()).target(x.clone().cos()), 0.05).unwrap().loss
    };
    let mut two = build(2);
    step(&mut two);
    let path = two.save(&Checkpoints::new(folder.path().join("saved")), &()).unwrap();
    let checkpoint = Checkpoint::open(path).unwrap();
    let mut losses = [1, 2].map(|members| {
        let mut resumed = build(members);
        resumed.load(&checkpoint).unwrap();
        assert_eq!(weights(&mut resumed), weights(&mut two));
        [step(&mut resumed), step(&mut resumed)]
    });
    losses.iter_mut().flatten().for_each(|loss| *loss = (*loss * 1e5).round());
    assert_eq!(losses[0], losses[1]);
    assert_eq!(checkpoint.parameters().len(), 2);
}

#[test]
fn what_does_not_fit_is_refused_with_the_whole_shape_and_nothing_changes() {
    let folder = tempdir().unwrap();
    let (_, checkpoint) = saved((1, 1, 2), &folder);
    let wider = crate::plain::Config { vocab: 24, ..SMALL };
    let mut pipeline = crate::model::builder_of(wider, ("1F1B", 1), (1, 1, 2)).optimizer(optimizer).build().unwrap();
    let before = weights(&mut pipeline);
    let error = pipeline.load(&checkpoint).unwrap_err().to_string();
    assert!(error.contains("[20, 8]") && error.contains("[24, 8]"), "{error}");
    assert!(weights(&mut pipeline) == before);
    pipeline.step(batch(&wider, 8), RATE).unwrap();
}

#[test]
fn processes_join_what_they_hold_in_pieces_to_fused_layers_and_split_it_again() {
    let folder = tempdir().unwrap();
    let (mut one, stored) = (adamw((1, 1, 1)).build().unwrap(), folder.path().join("fused"));
    // The model's layers are `[in, out]`, so their outputs are dimension 1; biases have one dimension.
    let parts = ["query", "key", "value"].map(|name| (name, SMALL.width));
    let fused = Pretrained::folder(&stored).split("blocks.{i}.attention.qkv", 1, &parts);
    one.export_as(&stored, Export::from(IdentityAdapter).like(&fused).sharded(3_000)).unwrap();
    let expected = weights(&mut one);
    let links = Threads::new(8);
    std::thread::scope(|scope| {
        for rank in 0..8 {
            let (links, folder, fused, expected) = (links.clone(), &folder, &fused, &expected);
            scope.spawn(move || {
                let mut pipeline = adamw((2, 2, 2)).build_rank(Box::new(links.link(rank, Device::flex()))).unwrap();
                pipeline.step(batch(&SMALL, 8), RATE).unwrap();
                pipeline.load_pretrained(fused).unwrap();
                assert!(weights(&mut pipeline) == *expected, "rank {rank}");
                let how = Export::from(IdentityAdapter).like(fused).sharded(3_000);
                pipeline.export_as(folder.path().join("processes"), how).unwrap();
            });
        }
    });
    let files = |folder: PathBuf| {
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        files.map(|path| (path.file_name().unwrap().to_owned(), bytes(&path))).collect::<BTreeMap<_, _>>()
    };
    let (threads, processes) = (files(stored), files(folder.path().join("processes")));
    assert!(threads.len() > 2 && processes == threads, "another folder");
    let index = &threads[std::ffi::OsStr::new("model.safetensors.index.json")];
    assert!(String::from_utf8_lossy(index).contains("blocks.3.attention.qkv.bias"));
}

#[test]
fn processes_save_export_and_load_as_threads_of_one_do() {
    let folder = tempdir().unwrap();
    let grid = (2, 2, 2);
    let (mut threads, checkpoint) = saved(grid, &folder);
    let expected = (weights(&mut threads), folder.path().join("threads.safetensors"));
    threads.export(&expected.1).unwrap();
    let links = Threads::new(8);
    std::thread::scope(|scope| {
        for rank in 0..8 {
            let (links, folder, expected, checkpoint) = (links.clone(), &folder, &expected, &checkpoint);
            scope.spawn(move || {
                let mut pipeline = adamw(grid).build_rank(Box::new(links.link(rank, Device::flex()))).unwrap();
                pipeline.load(checkpoint).unwrap();
                assert!(weights(&mut pipeline) == expected.0, "rank {rank}");
                let file = folder.path().join("processes.safetensors");
                pipeline.export(&file).unwrap();
                let saved = pipeline.save(&Checkpoints::new(folder.path().join("by-processes")), &()).unwrap();
                assert!(bytes(&file) == bytes(&expected.1), "rank {rank}");
                let opened = Checkpoint::open(saved).unwrap();
                opened.verify().unwrap();
                assert!(reference::weights(&resumed(&opened).model) == expected.0, "rank {rank}");
                step(&mut pipeline);
            });
        }
    });
}
