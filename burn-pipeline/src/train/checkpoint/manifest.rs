//! The manifest: what a checkpoint holds, as JSON beside its files.
//!
//! Guarantees: it is written last, and names every file with its size and checksum. It contains a checksum of itself,
//! so a changed or truncated manifest is detected.

use super::durable::write_durably;
use super::error::{CheckpointError, READING};
use crate::stage::StateValue;
use crate::train::progress::Progress;
use burn::store::burn_pack::Scalar;
use burn::tensor::DType;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

pub(super) const MANIFEST: &str = "manifest.json";
const VERSION: u32 = 2;

/// An exchange of rotary halves and pairs: the number of heads, and true if halves become pairs.
pub(super) type Turn = (usize, bool);

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct FileEntry {
    /// Its name within the folder.
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) crc32: u32,
}

/// A parameter of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ParameterEntry {
    /// Its names in the model; its tensor has the first.
    pub names: Vec<String>,
    /// Its element type.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<usize>,
    pub(super) file: usize,
    /// What the optimizer keeps for it.
    pub(super) state: BTreeMap<String, StateEntry>,
    /// The digest of its values; empty if it is trained.
    pub(super) digest: String,
    /// True if the base has its values, and the file has not.
    pub(super) in_base: bool,
}

/// What holds the values that a checkpoint leaves out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum BaseEntry {
    Checkpoint {
        folder: String,
        /// The digest of its manifest.
        digest: String,
    },
    /// The stores that were loaded into the pipeline.
    Pretrained { stores: Vec<String> },
}

/// The value of one field of the optimizer's state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StateEntry {
    Tensor,
    Int(i64),
    Uint(u64),
    /// The bits of a floating-point number, because text would round it.
    FloatBits(u64),
    Bool(bool),
}

/// What a checkpoint holds.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) version: u32,
    /// The serial number among the folder's checkpoints, in order of completion.
    pub(super) serial: u64,
    /// The serial number of the checkpoint that the job had saved or loaded before, if that is in the same folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) after: Option<u64>,
    pub(super) progress: Progress,
    /// The caller's own value, as JSON text, kept byte for byte.
    pub(super) beside: String,
    pub(super) plan: String,
    pub(super) stages: usize,
    pub(super) optimizer: bool,
    /// Absent if it holds everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) base: Option<BaseEntry>,
    /// How the rotary rows of each parameter were reordered, if they were, as far as the job knew.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) turned: BTreeMap<String, Option<Turn>>,
    /// The same of the adapters of parameters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) adapted: BTreeMap<String, Option<Turn>>,
    pub(super) files: Vec<FileEntry>,
    pub(super) parameters: Vec<ParameterEntry>,
}

/// The file's contents.
#[derive(Serialize, Deserialize)]
struct Sealed {
    crc32: Option<u32>,
    checkpoint: Manifest,
}

/// A checkpoint's place in the order of all: the part of its manifest with these fields.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
pub(super) struct Order {
    pub(super) serial: u64,
    pub(super) after: Option<u64>,
    pub(super) progress: Progress,
}

impl Order {
    /// Reads it from a checkpoint's folder, without parsing the rest of the manifest.
    pub(super) fn read(folder: &Path) -> Result<Self, CheckpointError> {
        let path = folder.join(MANIFEST);
        let text = std::fs::read(&path).map_err(CheckpointError::io(READING, &path))?;
        /// What is read of the file: not the checksum, so that a damaged one leaves the checkpoint its place.
        #[derive(Deserialize)]
        struct Placed {
            checkpoint: Order,
        }
        let placed: Placed = serde_json::from_slice(&text).map_err(|e| CheckpointError::damaged(&path, e))?;
        Ok(placed.checkpoint)
    }
}

impl Manifest {
    pub(super) fn new(progress: Progress, beside: String, plan: String, stages: usize) -> Self {
        Self { version: VERSION, progress, beside, plan, stages, ..Self::default() }
    }

    pub(super) fn sum(&self) -> Result<u32, serde_json::Error> {
        serde_json::to_vec(self).map(|text| crc32fast::hash(&text))
    }

    /// The digest by which another checkpoint names it as its base.
    pub(super) fn digest(&self) -> String {
        // Numbers and text can always be encoded.
        sha256(&serde_json::to_vec(self).unwrap_or_default())
    }

    /// Writes it into a folder and synchronises the file.
    pub(super) fn write(self, folder: &Path) -> Result<(), CheckpointError> {
        let path = folder.join(MANIFEST);
        let text = self.sum().and_then(|sum| serde_json::to_vec_pretty(&Sealed { crc32: Some(sum), checkpoint: self }));
        let text = text.map_err(|e| CheckpointError::Beside(e.to_string()))?;
        write_durably(&path, &text)
    }

    pub(super) fn read(folder: &Path) -> Result<Self, CheckpointError> {
        let path = folder.join(MANIFEST);
        let text = std::fs::read(&path).map_err(CheckpointError::io(READING, &path))?;
        let damaged = |error| CheckpointError::damaged(&path, error);
        let value: serde_json::Value = serde_json::from_slice(&text).map_err(damaged)?;
        // Other versions may have other fields, so the version is compared before the rest is parsed.
        let found = value["checkpoint"]["version"].as_u64().and_then(|found| u32::try_from(found).ok());
        if let Some(found) = found.filter(|&found| found != VERSION) {
            return Err(CheckpointError::Version { path, found, reads: VERSION });
        }
        let sealed: Sealed = serde_json::from_value(value).map_err(damaged)?;
        let sum = sealed.checkpoint.sum().map_err(damaged)?;
        let manifest = sealed.checkpoint;
        let whole = manifest.parameters.iter().all(|p| p.file < manifest.files.len() && !p.names.is_empty());
        let whole = whole && (manifest.base.is_some() || manifest.parameters.iter().all(|p| !p.in_base));
        let inside = manifest.files.iter().all(|file| Path::new(&file.name).file_name() == Some(file.name.as_ref()));
        match Some(sum) == sealed.crc32 && whole && inside {
            true => Ok(manifest),
            false => Err(CheckpointError::damaged(&path, "its checksum does not match its contents")),
        }
    }
}

impl ParameterEntry {
    /// The fields of its optimizer state; none if no step was taken, or it is not trained.
    pub fn optimizer_fields(&self) -> impl Iterator<Item = &str> {
        self.state.keys().map(String::as_str)
    }

    /// The name of its tensor in the file.
    pub(super) fn key(&self) -> &str {
        // The names from another rank may be empty; such a manifest is refused when it is read.
        self.names.first().map_or("", String::as_str)
    }

    /// The name in the file of a tensor that the optimizer keeps for a parameter.
    pub(super) fn state_key(name: &str, field: &str) -> String {
        format!("optimizer/{name}/{field}")
    }
}

impl StateEntry {
    pub(super) fn of(value: &StateValue) -> Self {
        match value {
            StateValue::Tensor(_) => StateEntry::Tensor,
            StateValue::Scalar(Scalar::Int(value)) => StateEntry::Int(*value),
            StateValue::Scalar(Scalar::UInt(value)) => StateEntry::Uint(*value),
            StateValue::Scalar(Scalar::Float(value)) => StateEntry::FloatBits(value.to_bits()),
            StateValue::Scalar(Scalar::Bool(value)) => StateEntry::Bool(*value),
        }
    }

    /// The number; `None` for a tensor.
    pub(super) fn value(&self) -> Option<StateValue> {
        Some(StateValue::Scalar(match self {
            StateEntry::Tensor => return None,
            StateEntry::Int(value) => Scalar::Int(*value),
            StateEntry::Uint(value) => Scalar::UInt(*value),
            StateEntry::FloatBits(bits) => Scalar::Float(f64::from_bits(*bits)),
            StateEntry::Bool(value) => Scalar::Bool(*value),
        }))
    }
}

/// An element type's name in a manifest.
pub(super) fn dtype_name(dtype: DType) -> String {
    match dtype {
        DType::Bool(_) => "bool".to_owned(),
        DType::Flex32 => "f32".to_owned(),
        dtype => format!("{dtype:?}").to_lowercase(),
    }
}

/// The SHA-256 of bytes, in hexadecimal.
pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
