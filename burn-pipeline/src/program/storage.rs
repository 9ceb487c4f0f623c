//! Which tensors share storage: views made by reshaping, swapping, slicing and expanding take no memory.
//!
//! Follows the rules of Burn's Flex backend: all of these are views, except a reshape of a tensor that is not
//! contiguous, which copies. A backend that copies more holds more.

use burn::backend::ir::{BaseOperationIr, OperationIr, TensorId, TensorIr};
use std::collections::HashMap;

/// A tensor's storage and its strides in it.
#[derive(Clone, Debug)]
struct Place {
    root: TensorId,
    strides: Vec<usize>,
}

/// The storage behind every tensor of a sequence of operations.
#[derive(Debug, Default)]
pub(super) struct Storages {
    places: HashMap<TensorId, Place>,
    bytes: HashMap<TensorId, usize>,
}

/// The size of a tensor's elements in bytes.
pub(super) fn bytes_of(tensor: &TensorIr) -> usize {
    tensor.shape.num_elements() * tensor.dtype.size()
}

impl Storages {
    /// Adds a tensor with storage of its own.
    pub(super) fn own(&mut self, tensor: &TensorIr) {
        self.bytes.insert(tensor.id, bytes_of(tensor));
        self.places.insert(tensor.id, Place { root: tensor.id, strides: in_order(tensor) });
    }

    /// Adds what an operation makes.
    pub(super) fn note(&mut self, op: &OperationIr) {
        if let Some((input, output, strides)) = self.view(op) {
            let root = self.root(input);
            self.places.insert(output, Place { root, strides });
            return;
        }
        op.outputs().for_each(|output| self.own(output));
    }

    /// The tensor that owns the storage.
    pub(super) fn root(&self, tensor: TensorId) -> TensorId {
        self.places.get(&tensor).map_or(tensor, |place| place.root)
    }

    /// The size in bytes of the storage that a root owns.
    pub(super) fn bytes(&self, root: TensorId) -> usize {
        self.bytes.get(&root).copied().unwrap_or_default()
    }

    /// The strides of a view's output; `None` if the operation makes no view.
    fn view(&self, op: &OperationIr) -> Option<(TensorId, TensorId, Vec<usize>)> {
        let (OperationIr::BaseFloat(base) | OperationIr::BaseInt(base) | OperationIr::BaseBool(base)) = op else {
            return None;
        };
        let strides = |tensor: &TensorIr| match self.places.get(&tensor.id) {
            Some(place) => place.strides.clone(),
            None => in_order(tensor),
        };
        Some(match base {
            BaseOperationIr::Reshape(shape) if lies_in_order(&shape.input, &strides(&shape.input)) => {
                (shape.input.id, shape.out.id, in_order(&shape.out))
            }
            BaseOperationIr::SwapDims(swap) => {
                let mut strides = strides(&swap.input);
                strides.swap(swap.dim1, swap.dim2);
                (swap.input.id, swap.out.id, strides)
            }
            BaseOperationIr::Permute(permute) => {
                let before = strides(&permute.input);
                (permute.input.id, permute.out.id, permute.axes.iter().map(|&axis| before[axis]).collect())
            }
            BaseOperationIr::Slice(slice) => (slice.tensor.id, slice.out.id, strides(&slice.tensor)),
            BaseOperationIr::Expand(shape) => {
                let (before, dims) = (strides(&shape.input), shape.input.shape.to_vec());
                let more = shape.out.shape.num_dims().saturating_sub(dims.len());
                let stretched = before.iter().zip(&dims).map(|(&stride, &dim)| if dim == 1 { 0 } else { stride });
                (shape.input.id, shape.out.id, std::iter::repeat_n(0, more).chain(stretched).collect())
            }
            _ => return None,
        })
    }
}

/// The strides of a contiguous tensor.
fn in_order(tensor: &TensorIr) -> Vec<usize> {
    let mut step = 1;
    let mut strides = Vec::with_capacity(tensor.shape.num_dims());
    for dim in tensor.shape.iter().rev() {
        strides.push(step);
        step *= dim;
    }
    strides.reverse();
    strides
}

fn lies_in_order(tensor: &TensorIr, strides: &[usize]) -> bool {
    let wanted = in_order(tensor);
    tensor.shape.iter().zip(strides.iter().zip(&wanted)).all(|(&dim, (have, want))| dim == 1 || have == want)
}
