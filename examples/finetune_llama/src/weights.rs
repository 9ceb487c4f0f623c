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
/// The files beside a base's weights that a merged model needs too.
const REQUIRED: [&str; 2] = ["config.json", "tokenizer.json"];
/// The same, for those that not every base has.
const OPTIONAL: [&str; 8] = [
    "generation_config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
];

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
    for name in REQUIRED.into_iter().chain(OPTIONAL) {
        let (from, to) = (base.join(name), to.join(name));
        match fs::read(&from) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && OPTIONAL.contains(&name) => {}
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
    use std::collections::BTreeSet;
    use tempfile::tempdir;

    #[test]
    fn all_of_a_base_but_its_weights_is_copied_and_only_what_a_model_needs_must_exist() {
        let (base, to) = (tempdir().unwrap(), tempdir().unwrap());
        let held = || {
            let names = fs::read_dir(to.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.collect::<BTreeSet<String>>()
        };
        for name in ["config.json", "tokenizer.json"] {
            let error = copy_beside(base.path(), to.path()).unwrap_err().to_string();
            assert!(error.contains(&format!("{name} cannot be read")), "{error}");
            fs::write(base.path().join(name), name).unwrap();
        }
        copy_beside(base.path(), to.path()).unwrap();
        assert_eq!(held(), BTreeSet::from(["config.json", "tokenizer.json"].map(str::to_owned)));
        // The files that transformers writes beside the weights of a Llama, by its slow and its fast tokenizer.
        let more = "generation_config.json tokenizer_config.json chat_template.jinja special_tokens_map.json \
                    added_tokens.json tokenizer.model vocab.json merges.txt";
        for name in more.split(' ').chain(["model.safetensors"]) {
            fs::write(base.path().join(name), name).unwrap();
        }
        copy_beside(base.path(), to.path()).unwrap();
        for name in more.split(' ') {
            assert_eq!(fs::read_to_string(to.path().join(name)).unwrap(), name);
        }
        assert!(!held().contains("model.safetensors"));
    }

    #[cfg(unix)]
    #[test]
    fn the_size_of_a_folder_is_that_of_its_files_with_those_that_links_name() {
        use std::os::unix::fs::symlink;
        let (folder, elsewhere) = (tempdir().unwrap(), tempdir().unwrap());
        fs::write(elsewhere.path().join("weights"), [0_u8; 5000]).unwrap();
        fs::write(folder.path().join("config.json"), [0_u8; 7]).unwrap();
        symlink(elsewhere.path().join("weights"), folder.path().join("model.safetensors")).unwrap();
        symlink(elsewhere.path().join("nothing"), folder.path().join("vocab.json")).unwrap();
        fs::create_dir(folder.path().join("original")).unwrap();
        fs::write(folder.path().join("original/weights"), [0_u8; 300]).unwrap();
        assert_eq!(bytes(folder.path()).unwrap(), 5007);
    }
}
