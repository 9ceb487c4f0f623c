//! The folders of a base, of adapters, and of both merged.

use crate::error::FinetuneError;
use crate::model::Tuning;
use burn::store::{BurnToPyTorchAdapter, PyTorchToBurnAdapter};
use burn_pipeline::train::{Adapters, Export, Pretrained};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The most bytes of tensors in a file of a merged model.
const SHARD: u64 = 5_000_000_000;

/// The weights of a base's folder: the model's names are those of `transformers`, so only layouts differ.
pub fn base(folder: PathBuf) -> Pretrained {
    let tables = |name: &str| name.ends_with("rotary_emb.inv_freq");
    Pretrained::folder(folder).adapter(PyTorchToBurnAdapter).ignored(tables)
}

/// How a merged model is written: as its base was.
pub fn merged(base: &Pretrained) -> Export {
    Export::from(BurnToPyTorchAdapter).like(base).merged().sharded(SHARD)
}

impl Tuning {
    /// The description of these adapters in PEFT's format.
    pub fn peft(&self, base: &Path) -> Adapters {
        Adapters { rank: self.rank, alpha: self.alpha, base: Some(base.display().to_string()) }
    }
}

/// The adapters that a folder of PEFT's holds.
///
/// # Errors
/// Returns a [`FinetuneError`] if there are none, or they are no such adapters.
pub fn stored_tuning(folder: &Path, seed: u64) -> Result<Tuning, FinetuneError> {
    let Adapters { rank, alpha, .. } = Adapters::read(folder)?;
    Ok(Tuning { rank, alpha, targets: Adapters::targets(folder)?, seed })
}

/// Removes a folder that an earlier run has written.
pub(crate) fn replaced(folder: &Path) -> Result<(), FinetuneError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(fs::create_dir_all(folder)?),
    }
}

/// The bytes of all files in a folder.
pub(crate) fn bytes(folder: &Path) -> Result<u64, FinetuneError> {
    let entries = fs::read_dir(folder).map_err(FinetuneError::reading(folder))?;
    Ok(entries.map(|entry| entry?.metadata().map(|file| file.len())).sum::<io::Result<u64>>()?)
}

/// Copies the configuration and the tokenizer beside a base's weights.
pub(crate) fn copy_beside(base: &Path, to: &Path) -> Result<(), FinetuneError> {
    for name in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
        match fs::copy(base.join(name), to.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}
