//! Where the values of a tensor come from: other tensors, whole, in part, joined, transposed, or with their rows in
//! another order.
//!
//! Guarantees: a tensor's shape and type are known without its values, which are read when they are needed. What does
//! not fit is a message, before any value is read.

use crate::train::checkpoint::manifest::Turn;
use burn::store::bridge;
use burn::store::burn_pack::Tensor as Stored;
use burn::tensor::{DType, Shape, TensorData};
use std::ops::Range;

/// Where a tensor's values come from. A dimension beyond the last one stands for the last: biases have only one.
#[derive(Clone, Debug)]
pub(in crate::train::checkpoint) enum Source {
    /// The tensor of this name.
    Whole(String),
    /// A range of a dimension that has `size` elements.
    Part { of: Box<Source>, dim: usize, range: Range<usize>, size: usize },
    /// Tensors of these sizes along a dimension.
    Joined { of: Vec<(Source, usize)>, dim: usize },
    /// Rotary halves and pairs, exchanged in the rows of each head.
    Turned { of: Box<Source>, heads: usize, to_pairs: bool },
    /// A matrix, transposed.
    Transposed(Box<Source>),
}

impl Source {
    /// This matrix, transposed.
    pub(super) fn transposed(self) -> Self {
        match self {
            Source::Transposed(of) => *of,
            other => Source::Transposed(Box::new(other)),
        }
    }

    /// How rotary halves and pairs are exchanged in it, or in a part of it.
    pub(in crate::train::checkpoint) fn turn(&self) -> Option<Turn> {
        match self {
            Source::Whole(_) => None,
            &Source::Turned { heads, to_pairs, .. } => Some((heads, to_pairs)),
            Source::Part { of, .. } | Source::Transposed(of) => of.turn(),
            Source::Joined { of, .. } => of.iter().find_map(|(source, _)| source.turn()),
        }
    }

    /// The names of the tensors that it needs, in order.
    pub(in crate::train::checkpoint) fn names(&self) -> Vec<&str> {
        match self {
            Source::Whole(name) => vec![name],
            Source::Part { of, .. } | Source::Turned { of, .. } | Source::Transposed(of) => of.names(),
            Source::Joined { of, .. } => of.iter().flat_map(|(source, _)| source.names()).collect(),
        }
    }

    /// The tensor, made from those that it needs, in order.
    pub(in crate::train::checkpoint) fn tensor(
        &self,
        needed: &mut impl Iterator<Item = Stored>,
    ) -> Result<Stored, String> {
        match self {
            Source::Whole(name) => needed.next().ok_or_else(|| format!("`{name}` is not there")),
            Source::Part { of, dim, range, size } => part(of.tensor(needed)?, *dim, range.clone(), *size),
            Source::Joined { of, dim } => {
                let tensors = of.iter().map(|(source, size)| Ok((source.tensor(needed)?, *size)));
                joined(tensors.collect::<Result<_, String>>()?, *dim)
            }
            Source::Turned { of, heads, to_pairs } => turned(of.tensor(needed)?, *heads, *to_pairs),
            Source::Transposed(of) => transposed(of.tensor(needed)?),
        }
    }
}

/// The blocks of a tensor along a dimension: how many there are, and the bytes of one step of the dimension.
struct Blocks {
    dim: usize,
    count: usize,
    bytes: usize,
}

impl Blocks {
    /// The blocks along a dimension, which must have this size.
    fn of(tensor: &Stored, dim: usize, size: usize) -> Result<Self, String> {
        let shape = tensor.shape.to_vec();
        let last = shape.len().checked_sub(1).ok_or_else(|| format!("`{}` is a number", tensor.name))?;
        if matches!(tensor.dtype, DType::QFloat(_)) {
            return Err(format!("`{}` is quantized, and its elements cannot be moved", tensor.name));
        }
        let dim = dim.min(last);
        if shape[dim] != size {
            return Err(format!("`{}` is {shape:?}, and {size} was declared of dimension {dim}", tensor.name));
        }
        let (count, inner) = (shape[..dim].iter().product(), shape[dim + 1..].iter().product::<usize>());
        Ok(Self { dim, count, bytes: inner * tensor.dtype.size() })
    }
}

/// A tensor of another shape, made of pieces of this many bytes of the old one; `from` returns the place of each there.
fn moved(tensor: Stored, shape: Shape, bytes: usize, from: impl Fn(usize) -> usize + Send + Sync + 'static) -> Stored {
    let (name, dtype, new) = (tensor.name.clone(), tensor.dtype, shape.clone());
    bridge::map_data(tensor, name, dtype, shape, move |data| {
        let old = data.as_bytes();
        let size = new.num_elements() * dtype.size();
        let mut all = Vec::with_capacity(size);
        for piece in (0..size.checked_div(bytes).unwrap_or_default()).map(&from) {
            all.extend_from_slice(&old[piece * bytes..(piece + 1) * bytes]);
        }
        TensorData::from_bytes_vec(all, new.clone(), dtype)
    })
}

fn part(tensor: Stored, dim: usize, range: Range<usize>, size: usize) -> Result<Stored, String> {
    let Blocks { dim, bytes, .. } = Blocks::of(&tensor, dim, size)?;
    let mut shape = tensor.shape.clone();
    shape[dim] = range.len();
    let from = move |step: usize| step / range.len() * size + range.start + step % range.len();
    Ok(moved(tensor, shape, bytes, from))
}

fn joined(tensors: Vec<(Stored, usize)>, dim: usize) -> Result<Stored, String> {
    let Some((first, size)) = tensors.first() else { return Err("no part was declared".to_owned()) };
    let Blocks { dim, count, .. } = Blocks::of(first, dim, *size)?;
    let (name, dtype, mut shape) = (first.name.clone(), first.dtype, first.shape.clone());
    let mut widths = Vec::new();
    for (tensor, size) in &tensors {
        shape[dim] = *size;
        if tensor.shape != shape || tensor.dtype != dtype {
            let (own, wanted) = (tensor.shape.to_vec(), shape.to_vec());
            let text = format!("`{}` is {own:?} of {:?}, and", tensor.name, tensor.dtype);
            return Err(format!("{text} {wanted:?} of {dtype:?} would go beside `{name}`"));
        }
        widths.push(size * Blocks::of(tensor, dim, *size)?.bytes);
    }
    shape[dim] = tensors.iter().map(|(_, size)| size).sum();
    let own = shape.clone();
    Ok(bridge::deferred(name, dtype, shape, None, move || {
        let read = tensors.iter().map(|(tensor, _)| bridge::to_data(tensor)).collect::<Result<Vec<TensorData>, _>>()?;
        let mut bytes = Vec::new();
        for block in 0..count {
            for (data, width) in read.iter().zip(&widths) {
                bytes.extend_from_slice(&data.as_bytes()[block * width..(block + 1) * width]);
            }
        }
        Ok(TensorData::from_bytes_vec(bytes, own.clone(), dtype))
    }))
}

/// Row `j` of a head's first half and row `j` of its second become neighbours, or the other way round.
fn turned(tensor: Stored, heads: usize, to_pairs: bool) -> Result<Stored, String> {
    let rows = tensor.shape.first().copied().unwrap_or_default();
    let Blocks { bytes, .. } = Blocks::of(&tensor, 0, rows)?;
    if heads == 0 || !rows.is_multiple_of(2 * heads) {
        let (name, shape) = (&tensor.name, tensor.shape.to_vec());
        return Err(format!("`{name}` is {shape:?}, whose rows are not {heads} heads of an even size"));
    }
    let (head, half, shape) = (rows / heads, rows / heads / 2, tensor.shape.clone());
    let from = move |row: usize| match (row / head * head, row % head) {
        (start, row) if to_pairs => start + row / 2 + row % 2 * half,
        (start, row) => start + row % half * 2 + row / half,
    };
    Ok(moved(tensor, shape, bytes, from))
}

fn transposed(tensor: Stored) -> Result<Stored, String> {
    let [rows, columns] = <[usize; 2]>::try_from(tensor.shape.to_vec())
        .map_err(|shape| format!("`{}` is {shape:?}, which is no matrix", tensor.name))?;
    Blocks::of(&tensor, 0, rows)?;
    let bytes = tensor.dtype.size();
    Ok(moved(tensor, Shape::from([columns, rows]), bytes, move |place| place % rows * columns + place / rows))
}
