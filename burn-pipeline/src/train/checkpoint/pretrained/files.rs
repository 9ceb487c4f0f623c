//! The files of pretrained weights: a Burn store, or a folder as Hugging Face's `transformers` writes it.
//!
//! Guarantees: of a folder with an index, a rank opens only the files that hold tensors of its stages. Other files of
//! the folder are left alone, and no name in an index leads out of it.
//!
//! 1. [`in_folder`] takes the first of [`KINDS`] that is there. An index names the file of each tensor.
//! 2. A file is opened when its first tensor is needed. It lists names, shapes and types; values are read later.

use burn::store::burn_pack::Tensor as Stored;
use burn::store::{ModuleStore, SafetensorsStore};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The names that `transformers` looks for, in its order, and whether each is an index of several files.
const KINDS: [(&str, bool); 4] =
    [("model.safetensors", false), (INDEX, true), ("pytorch_model.bin", false), ("pytorch_model.bin.index.json", true)];

/// The name of the index of several safetensors files.
pub(in crate::train::checkpoint) const INDEX: &str = "model.safetensors.index.json";

type Tensors = BTreeMap<String, Stored>;

/// A file, and the tensors that it holds or should hold.
pub(super) struct File {
    /// Where it is, if a folder has it.
    path: Option<PathBuf>,
    pub(super) names: Vec<String>,
    /// Its tensors, once it was opened.
    tensors: Option<Tensors>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl File {
    /// The tensors of a store.
    pub(super) fn of_store(mut store: impl ModuleStore) -> Result<Self, String> {
        Ok(Self::opened(None, tensors(&mut store)?))
    }

    fn opened(path: Option<PathBuf>, tensors: Tensors) -> Self {
        Self { path, names: tensors.keys().cloned().collect(), tensors: Some(tensors) }
    }

    /// Its name within its folder; a store has none.
    pub(super) fn name(&self) -> Option<String> {
        self.path.as_ref()?.file_name().map(|name| name.to_string_lossy().into_owned())
    }

    /// One of its tensors; the first one opens the file.
    pub(super) fn tensor(&mut self, name: &str) -> Result<Stored, String> {
        let path = self.path.clone().unwrap_or_default();
        let tensors = match &mut self.tensors {
            Some(tensors) => tensors,
            closed => closed.insert(open(&path)?),
        };
        let lacks = || format!("{} does not hold `{name}`, which its index says", path.display());
        tensors.get(name).cloned().ok_or_else(lacks)
    }
}

/// The files of a folder that hold the model.
pub(super) fn in_folder(folder: &Path) -> Result<Vec<File>, String> {
    let Some((name, is_index)) = KINDS.into_iter().find(|(name, _)| folder.join(name).is_file()) else {
        let names = KINDS.map(|(name, _)| name).join(", ");
        return Err(format!("{} holds none of {names}", folder.display()));
    };
    let path = folder.join(name);
    if !is_index {
        return Ok(vec![file(&path)?]);
    }
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read(&path).map_err(|error| failed(&error))?;
    let Index { weight_map } = serde_json::from_slice(&text).map_err(|error| failed(&error))?;
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, file) in weight_map {
        if Path::new(&file).file_name() != Some(file.as_ref()) {
            return Err(failed(&format!("`{name}` is in `{file}`, which is no file of the folder")));
        }
        files.entry(file).or_default().push(name);
    }
    Ok(files.into_iter().map(|(file, names)| File { path: Some(folder.join(file)), names, tensors: None }).collect())
}

pub(super) fn file(path: &Path) -> Result<File, String> {
    Ok(File::opened(Some(path.to_owned()), open(path)?))
}

/// Opens a file by its name's ending.
fn open(path: &Path) -> Result<Tensors, String> {
    let opened = match path.extension().is_some_and(|ending| ending == "safetensors") {
        true => tensors(&mut SafetensorsStore::from_file(path)),
        false => of_pytorch(path),
    };
    opened.map_err(|error| format!("{}: {error}", path.display()))
}

fn tensors(store: &mut impl ModuleStore) -> Result<Tensors, String> {
    store.get_all_tensors().cloned().map_err(|error| error.to_string())
}

#[cfg(feature = "pytorch")]
fn of_pytorch(path: &Path) -> Result<Tensors, String> {
    // A shard that starts with layer 2 must keep its numbers.
    tensors(&mut burn::store::PytorchStore::from_file(path).map_indices_contiguous(false))
}

#[cfg(not(feature = "pytorch"))]
fn of_pytorch(_: &Path) -> Result<Tensors, String> {
    Err("PyTorch's files need the feature `pytorch` of burn-pipeline".to_owned())
}
