//! A small model, and a checkpoint of it that was changed on disk.

use burn::module::{Module, Param, ParamId};
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Bool, Device, Int, Tensor};
use burn_pipeline::stage::{Names, Stage, named_weights};
use burn_pipeline::train::Checkpoint;
use std::fs;
use std::path::{Path, PathBuf};

/// The name of the tensor file.
pub const FILE: &str = "stage-000.safetensors";

/// A linear layer, and tensors of other kinds.
#[derive(Module, Debug)]
pub struct Model {
    linear: Linear,
    counts: Param<Tensor<1, Int>>,
    mask: Param<Tensor<1, Bool>>,
}

impl Model {
    /// A model with random weights.
    pub fn new(device: &Device) -> Self {
        let counts = Tensor::from_ints([1, 2, 3], device);
        Self {
            linear: LinearConfig::new(2, 2).init(device),
            mask: Param::initialized(ParamId::new(), counts.clone().greater_elem(1)),
            counts: Param::initialized(ParamId::new(), counts),
        }
    }
}

impl Stage for Model {
    type Input = Tensor<2>;
    type Extra = ();
    type Output = Tensor<2>;

    fn forward(&self, x: Tensor<2>, (): ()) -> Tensor<2> {
        self.linear.forward(x)
    }
}

/// Creates a folder for this process.
///
/// # Panics
/// If it cannot be created, or if the seeds are not a checkpoint that the model loads: changes of them would then be
/// refused before they are read.
pub fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("the folder for temporary files can be written");
    write(&folder, include_str!("seeds/manifest/saved"), include_bytes!("seeds/tensors/saved"));
    let seeds = Checkpoint::open(&folder).expect("the seeds are a checkpoint of this version");
    seeds.load_module(Model::new(&Device::flex()), &Names::default()).expect("the model loads the seeds");
    folder
}

/// Writes a checkpoint from its manifest's content and its tensor file.
///
/// # Panics
/// If the folder cannot be written.
pub fn write(folder: &Path, says: &str, tensors: &[u8]) {
    let sum = crc32fast::hash(says.as_bytes());
    let manifest = format!("{{\"crc32\":{sum},\"checkpoint\":{says}}}");
    for (name, bytes) in [("manifest.json", manifest.as_bytes()), (FILE, tensors)] {
        fs::write(folder.join(name), bytes).expect("the folder can be written");
    }
}

/// Reads a checkpoint in every way. Whatever is loaded must fit the model, and everything else must be refused.
///
/// # Panics
/// If it is not.
pub fn read(folder: &Path) {
    let checkpoint = match Checkpoint::open(folder) {
        Ok(checkpoint) => checkpoint,
        Err(refusal) => return assert!(!refusal.to_string().is_empty()),
    };
    drop((checkpoint.progress(), checkpoint.beside::<serde_json::Value>(), checkpoint.verify()));
    let (names, device) = (Names::default(), Device::flex());
    let model = Model::new(&device);
    let loaded = checkpoint.load_module(model.clone(), &names);
    if let Ok(loaded) = &loaded {
        let specs = |model: &Model| {
            let weights = named_weights(model, &names).into_iter();
            weights.map(|weight| (weight.names, weight.value.dtype(), weight.value.shape())).collect::<Vec<_>>()
        };
        assert_eq!(specs(loaded), specs(&model));
    }
    drop(checkpoint.load_optimizer(AdamWConfig::new().init(), &model, &names));
    // A tensor file that the manifest does not describe does not belong to this checkpoint.
    drop(checkpoint.export(folder.join("model.safetensors")));
}
