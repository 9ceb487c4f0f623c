//! The folders of a base, of adapters, and of both merged.

use crate::error::FinetuneError;
use crate::model::Tuning;
use crate::options::Options;
use crate::output::replace;
use burn::store::{BurnToPyTorchAdapter, PyTorchToBurnAdapter};
use burn_pipeline::Pipeline;
use burn_pipeline::train::{Adapters, Export, Pretrained};
use std::fs;
use std::io::{self, Write};
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

/// Stores the adapters of a pipeline; returns their folder.
///
/// # Errors
/// Returns a [`FinetuneError`] if they cannot be written.
pub(crate) fn store(
    options: &Options,
    tuning: &Tuning,
    pipeline: &mut Pipeline,
    out: &mut dyn Write,
) -> Result<PathBuf, FinetuneError> {
    let (base, adapters) = (options.base(), options.out.join("adapters"));
    replace(&adapters, |new| Ok(pipeline.export_as(new, Export::adapters(tuning.peft(&base)))?))?;
    let (own, all) = (bytes(&adapters)?, bytes(&base)?);
    let share = 100.0 * own as f64 / all as f64;
    writeln!(out, "adapters: {} ({own} bytes, {share:.2} % of the base's folder)", adapters.display())?;
    Ok(adapters)
}

/// Stores the model with its adapters added to its weights, as a folder like the base's.
///
/// # Errors
/// Returns a [`FinetuneError`] if it cannot be written.
pub(crate) fn merge(options: &Options, pipeline: &mut Pipeline, out: &mut dyn Write) -> Result<(), FinetuneError> {
    let (from, to) = (options.base(), options.out.join("merged"));
    replace(&to, |new| {
        pipeline.export_as(new, merged(&base(from.clone())))?;
        copy_beside(&from, new)
    })?;
    Ok(writeln!(out, "merged: {}", to.display())?)
}

/// The bytes of a folder's own files, of which some may be links, as in the cache of Hugging Face.
fn bytes(folder: &Path) -> Result<u64, FinetuneError> {
    let entries = fs::read_dir(folder).map_err(FinetuneError::reading(folder))?;
    let sizes = entries.map(|entry| entry.map(|entry| size(&entry.path())));
    sizes.sum::<io::Result<u64>>().map_err(FinetuneError::reading(folder))
}

/// The bytes of a file; 0 for a folder, and for a link to nothing.
fn size(path: &Path) -> u64 {
    fs::metadata(path).ok().filter(fs::Metadata::is_file).map_or(0, |file| file.len())
}

/// Copies the configuration and the tokenizer beside a base's weights.
fn copy_beside(base: &Path, to: &Path) -> Result<(), FinetuneError> {
    for (name, required) in [
        ("config.json", true),
        ("generation_config.json", false),
        ("tokenizer.json", true),
        ("tokenizer_config.json", false),
    ] {
        let (from, to) = (base.join(name), to.join(name));
        match fs::read(&from) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !required => {}
            text => {
                fs::write(&to, text.map_err(FinetuneError::reading(&from))?).map_err(FinetuneError::writing(&to))?
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::tempdir;

    #[cfg(unix)]
    #[test]
    fn the_size_of_a_folder_is_that_of_its_files_with_those_that_links_name() {
        use std::os::unix::fs::symlink;
        let (folder, elsewhere) = (tempdir().unwrap(), tempdir().unwrap());
        fs::write(elsewhere.path().join("weights"), [0; 5000]).unwrap();
        fs::write(folder.path().join("config.json"), [0; 7]).unwrap();
        symlink(elsewhere.path().join("weights"), folder.path().join("model.safetensors")).unwrap();
        symlink(elsewhere.path().join("nothing"), folder.path().join("vocab.json")).unwrap();
        fs::create_dir(folder.path().join("original")).unwrap();
        fs::write(folder.path().join("original/weights"), [0; 300]).unwrap();
        assert_eq!(bytes(folder.path()).unwrap(), 5007);
    }
}
