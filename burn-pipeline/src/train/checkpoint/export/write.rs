//! Writes an exported model: one safetensors file, or a folder as Hugging Face's `transformers` does.
//!
//! Guarantees: a file or folder appears when it is complete and synchronised. An existing file is replaced; a folder
//! that is not empty is refused before anything is written.
//!
//! 1. Tensors are in the order of [`in_file_order`], also over the files of a folder. A file ends before the tensor
//!    that would make it too large.
//! 2. The folder is written under its name with `.partial`, and renamed.

use super::how::Export;
use crate::train::checkpoint::durable::{appear, synchronise, write_durably};
use crate::train::checkpoint::error::CheckpointError;
use crate::train::checkpoint::pretrained::{ADAPTERS, Adapters, CONFIG, INDEX};
use crate::train::checkpoint::tensors::{Item, in_file_order, write_file, write_model};
use burn::store::bridge;
use burn::store::burn_pack::Tensor as Stored;
use burn::tensor::TensorData;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Error, ErrorKind};
use std::path::Path;

pub(super) fn item<'a>(tensor: Stored) -> Item<'a> {
    let (name, dtype, shape) = (tensor.name.clone(), tensor.dtype, tensor.shape.to_vec());
    Item { name, dtype, shape, read: Box::new(|| data(tensor)) }
}

pub(super) fn data(tensor: Stored) -> Result<TensorData, String> {
    bridge::into_data(tensor).map_err(|error| error.to_string())
}

pub(super) fn write(path: &Path, items: Vec<Item<'_>>, how: &Export) -> Result<(), CheckpointError> {
    match (&how.adapters, how.shard) {
        (Some(adapters), _) => {
            in_new_folder(path, |folder| write_adapters(folder, items, adapters, how.task.as_deref()))
        }
        (None, Some(most)) => in_new_folder(path, |folder| write_shards(folder, shards(items, most))),
        (None, None) => write_model(path, items),
    }
}

fn in_new_folder(
    folder: &Path,
    write: impl FnOnce(&Path) -> Result<(), CheckpointError>,
) -> Result<(), CheckpointError> {
    if folder.is_file() || fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some()) {
        let source = Error::new(
            ErrorKind::AlreadyExists,
            "it is a file, or a folder that is not empty; export into a new folder",
        );
        return Err(CheckpointError::Io { doing: "exporting to", path: folder.to_owned(), source });
    }
    let partial = &*folder.with_added_extension("partial");
    remove(partial);
    fs::create_dir(partial).map_err(CheckpointError::io("creating", partial))?;
    let written = write(partial).and_then(|()| synchronise(partial)).and_then(|()| appear(partial, folder));
    written.inspect_err(|_| {
        // Keep the error of writing, not that of the clean-up.
        remove(partial);
    })
}

/// Removes what an export that was stopped left; files of others stay.
fn remove(folder: &Path) {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let own = |name: &str| name.ends_with(".safetensors") || [INDEX, CONFIG].contains(&name);
    files.filter(|file| file.file_name().to_str().is_some_and(own)).for_each(|file| drop(fs::remove_file(file.path())));
    let _ = fs::remove_dir(folder);
}

/// The tensors of each file.
fn shards(mut items: Vec<Item<'_>>, most: u64) -> Vec<Vec<Item<'_>>> {
    items.sort_by(|a, b| in_file_order((a.dtype, &a.name), (b.dtype, &b.name)));
    let (mut shards, mut shard, mut left) = (Vec::new(), Vec::new(), most);
    for item in items {
        let bytes = item.bytes();
        if bytes > left && !shard.is_empty() {
            shards.push(std::mem::take(&mut shard));
            left = most;
        }
        left = left.saturating_sub(bytes);
        shard.push(item);
    }
    shards.push(shard);
    shards
}

fn write_adapters(
    folder: &Path,
    items: Vec<Item<'_>>,
    adapters: &Adapters,
    task: Option<&str>,
) -> Result<(), CheckpointError> {
    adapters.write(folder, task, items.iter().map(|item| item.name.as_str()))?;
    write_file(&folder.join(ADAPTERS), items)
}

fn write_shards(folder: &Path, shards: Vec<Vec<Item<'_>>>) -> Result<(), CheckpointError> {
    let all = shards.len();
    let (mut weight_map, mut total_size) = (BTreeMap::new(), 0);
    for (number, items) in (1..).zip(shards) {
        let file = match all {
            1 => "model.safetensors".to_owned(),
            _ => format!("model-{number:05}-of-{all:05}.safetensors"),
        };
        for item in &items {
            total_size += item.bytes();
            weight_map.insert(item.name.clone(), file.clone());
        }
        write_file(&folder.join(file), items)?;
    }
    if all == 1 {
        return Ok(());
    }
    let index = json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map });
    write_durably(&folder.join(INDEX), format!("{index:#}\n").as_bytes())
}
