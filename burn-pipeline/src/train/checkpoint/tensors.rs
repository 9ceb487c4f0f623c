//! Safetensors files, written one tensor at a time.
//!
//! 1. The header needs only shapes and element types, so weights are read from their devices one by one while they are
//!    written. (An optimizer's state is already on the host as a whole, because Burn returns its record as a whole.)
//! 2. The checksum is computed while the file is written. A file counts as written only once it is synchronised.
//! 3. A file is read as a whole, and its size and checksum are compared first, so no byte of a damaged one is used.

use super::durable::appear;
use super::error::{CheckpointError, READING};
use super::manifest::{FileEntry, sha256};
use burn::tensor::{BoolStore, DType, TensorData};
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// The digest of the values of a parameter that is not trained, by which a base is recognised; or why they cannot be
/// read.
pub(super) type HeldDigest = Result<String, String>;

pub(super) fn digest(values: TensorData) -> String {
    sha256(plain(values).as_bytes())
}

/// A tensor to be written.
pub(super) struct Item<'a> {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) read: Box<dyn FnOnce() -> Result<TensorData, String> + 'a>,
}

impl Item<'_> {
    /// A tensor whose values are on the host.
    pub(super) fn of(name: String, data: TensorData) -> Self {
        let (dtype, shape) = (data.dtype(), data.shape().to_vec());
        Self { name, dtype, shape, read: Box::new(move || Ok(data)) }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.shape.iter().fold(self.dtype.size() as u64, |bytes, &size| bytes.saturating_mul(size as u64))
    }
}

/// Writes tensors and synchronises the file. `progress` is called after every tensor.
pub(super) fn write(
    path: &Path,
    mut items: Vec<Item<'_>>,
    about: &[(&str, String)],
    progress: &mut dyn FnMut(),
) -> Result<FileEntry, CheckpointError> {
    items.sort_by(|a, b| in_file_order((a.dtype, &a.name), (b.dtype, &b.name)));
    let (mut offset, mut header) = (0, Vec::with_capacity(items.len()));
    for item in &items {
        let (dtype, shape) = (stored(item.dtype).ok_or_else(|| unstored(item))?, item.shape.clone());
        let bytes = shape.iter().try_fold(dtype.bitsize() / 8, |bytes, &size| bytes.checked_mul(size));
        let end = bytes.and_then(|bytes| bytes.checked_add(offset)).ok_or_else(|| other(&item.name))?;
        header.push((item.name.clone(), TensorInfo { dtype, shape, data_offsets: (offset, end) }));
        offset = end;
    }
    let about = about.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    let header = Metadata::new(Some(about), header).map_err(|e| CheckpointError::damaged(path, e))?;
    let mut header = serde_json::to_vec(&header).map_err(|e| CheckpointError::damaged(path, e))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut out = Checked::create(path)?;
    out.write(&(header.len() as u64).to_le_bytes())?;
    out.write(&header)?;
    for item in items {
        let device = |message| CheckpointError::Device { name: item.name.clone(), message };
        let data = plain((item.read)().map_err(device)?);
        if stored(data.dtype()) != stored(item.dtype) || **data.shape() != *item.shape {
            return Err(other(&item.name));
        }
        out.write(data.as_bytes())?;
        progress();
    }
    out.finish()
}

/// Wider elements come first, which keeps every tensor aligned; then by name, so equal models give equal files.
pub(super) fn in_file_order(a: (DType, &str), b: (DType, &str)) -> std::cmp::Ordering {
    stored(b.0).cmp(&stored(a.0)).then_with(|| a.1.cmp(b.1))
}

/// Writes a model's weights for other programs, atomically.
pub(super) fn write_model(path: &Path, items: Vec<Item<'_>>) -> Result<(), CheckpointError> {
    let partial = path.with_added_extension("partial");
    let written = write_file(&partial, items).and_then(|()| appear(&partial, path));
    written.inspect_err(|_| {
        // Keep the error of writing, not that of the clean-up.
        let _ = std::fs::remove_file(partial);
    })
}

/// Writes tensors for other programs.
pub(super) fn write_file(path: &Path, items: Vec<Item<'_>>) -> Result<(), CheckpointError> {
    // Hugging Face's loader needs this entry.
    write(path, items, &[("format", "pt".to_owned())], &mut || ()).map(|_| ())
}

fn unstored(item: &Item<'_>) -> CheckpointError {
    // A quantization scheme announced by another rank is not printed, because Burn panics on an invalid one.
    CheckpointError::ElementType { name: item.name.clone(), dtype: "QFloat".to_owned() }
}

/// The error for a tensor that differs from what another rank announced.
fn other(name: &str) -> CheckpointError {
    CheckpointError::Device { name: name.to_owned(), message: "it is not as its rank announced it".to_owned() }
}

/// Converts booleans to one byte each; leaves everything else unchanged.
fn plain(data: TensorData) -> TensorData {
    if data.dtype().is_bool() { data.convert_dtype(DType::Bool(BoolStore::Native)) } else { data }
}

/// Element types, with their types in files.
const TYPES: [(DType, Dtype); 13] = [
    (DType::F64, Dtype::F64),
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::I64, Dtype::I64),
    (DType::I32, Dtype::I32),
    (DType::I16, Dtype::I16),
    (DType::I8, Dtype::I8),
    (DType::U64, Dtype::U64),
    (DType::U32, Dtype::U32),
    (DType::U16, Dtype::U16),
    (DType::U8, Dtype::U8),
    (DType::Bool(BoolStore::Native), Dtype::BOOL),
];

fn stored(dtype: DType) -> Option<Dtype> {
    let plain = match dtype {
        DType::Flex32 => DType::F32,
        DType::Bool(_) => DType::Bool(BoolStore::Native),
        dtype => dtype,
    };
    TYPES.into_iter().find(|(own, _)| *own == plain).map(|(_, stored)| stored)
}

fn read_as(dtype: Dtype) -> Option<DType> {
    TYPES.into_iter().find(|(_, stored)| *stored == dtype).map(|(own, _)| own)
}

/// A file being written, with the checksum of the bytes so far.
struct Checked<'a> {
    path: &'a Path,
    file: BufWriter<File>,
    bytes: u64,
    sum: crc32fast::Hasher,
}

impl<'a> Checked<'a> {
    fn create(path: &'a Path) -> Result<Self, CheckpointError> {
        let file = File::create(path).map_err(CheckpointError::io("creating", path))?;
        let file = BufWriter::with_capacity(1 << 20, file);
        Ok(Self { path, file, bytes: 0, sum: crc32fast::Hasher::new() })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.sum.update(bytes);
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes).map_err(CheckpointError::io("writing", self.path))
    }

    fn finish(self) -> Result<FileEntry, CheckpointError> {
        let Self { path, file, bytes, sum } = self;
        let written = file.into_inner().map_err(|error| error.into_error()).and_then(|file| file.sync_all());
        written.map_err(CheckpointError::io("writing", path))?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(FileEntry { name, bytes, crc32: sum.finalize() })
    }
}

/// A file that was read and verified.
pub(super) struct Tensors {
    path: PathBuf,
    buffer: Vec<u8>,
    /// Where the first tensor begins.
    begin: usize,
    header: Metadata,
}

impl Tensors {
    /// Reads a file and compares its size and checksum.
    pub(super) fn read(folder: &Path, entry: &FileEntry) -> Result<Self, CheckpointError> {
        let path = folder.join(&entry.name);
        let bytes = std::fs::metadata(&path).map_err(CheckpointError::io(READING, &path))?.len();
        if bytes != entry.bytes {
            return Err(CheckpointError::damaged(&path, format!("it has {bytes} bytes instead of {}", entry.bytes)));
        }
        let buffer = std::fs::read(&path).map_err(CheckpointError::io(READING, &path))?;
        let sum = crc32fast::hash(&buffer);
        if sum != entry.crc32 {
            let what = format!("its checksum is {sum:08x} instead of {:08x}", entry.crc32);
            return Err(CheckpointError::damaged(&path, what));
        }
        // The header's length, in eight bytes, comes before it.
        let read = SafeTensors::read_metadata(&buffer).map_err(|e| CheckpointError::damaged(&path, e));
        let (begin, header) = read.map(|(length, header)| (size_of::<u64>() + length, header))?;
        Ok(Self { path, buffer, begin, header })
    }

    pub(super) fn take(&self, name: &str) -> Result<TensorData, CheckpointError> {
        let absent = || SafeTensorError::TensorNotFound(name.to_owned());
        let tensor = self.header.info(name).ok_or_else(|| CheckpointError::damaged(&self.path, absent()))?;
        let dtype = read_as(tensor.dtype).ok_or_else(|| CheckpointError::ElementType {
            name: name.to_owned(),
            dtype: format!("{:?}", tensor.dtype),
        })?;
        let (start, end) = tensor.data_offsets;
        let bytes = self.buffer[self.begin..][start..end].to_vec();
        Ok(TensorData::from_bytes_vec(bytes, tensor.shape.clone(), dtype))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_that_is_not_as_it_was_announced_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("announced.safetensors");
        for (dtype, shape, fits) in [
            (DType::F32, vec![2, 3], true),
            (DType::F32, vec![3, 2], false),
            (DType::F32, vec![7], false),
            (DType::I32, vec![2, 3], false),
            (DType::F32, vec![usize::MAX, 3], false),
        ] {
            let read = Box::new(|| Ok(TensorData::new(vec![0f32; 6], [2, 3])));
            let written = write(&path, vec![Item { name: "x".into(), dtype, shape, read }], &[], &mut || ());
            assert_eq!(written.is_ok(), fits, "{written:?}");
        }
    }
}
