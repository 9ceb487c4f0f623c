//! Element type and sizes of a tensor, without its values.

use super::any_tensor::{AnyTensor, TensorKind};
use super::cut_over::CutOver;
use burn::tensor::DType;

/// Element type and sizes of one tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TensorSpec {
    pub dtype: DType,
    /// Size of each dimension; `None` stands for any.
    pub dims: Vec<Option<usize>>,
}

impl TensorSpec {
    pub(crate) fn of(tensor: &AnyTensor) -> Self {
        let dims = tensor.shape().iter().map(|&size| Some(size)).collect();
        Self { dtype: tensor.dtype(), dims }
    }

    /// Float, int or bool.
    pub(super) fn kind(&self) -> TensorKind {
        TensorKind::of(self.dtype)
    }

    pub(super) fn fits(&self, expected: &Self) -> bool {
        self.dtype == expected.dtype
            && self.dims.len() == expected.dims.len()
            && expected.dims.iter().zip(&self.dims).all(|(wanted, got)| wanted.is_none() || wanted == got)
    }

    /// The spec in words, with the whole tensor's shape if this is a piece of it.
    pub(super) fn described(&self, cut: Option<CutOver>) -> String {
        match cut {
            Some(cut) => format!("{self}, a piece of {} {cut}", sizes(&cut.whole(&self.dims))),
            None => self.to_string(),
        }
    }
}

/// `[2, ?, 8]`: the sizes, with a question mark for an unknown one.
fn sizes(dims: &[Option<usize>]) -> String {
    let dims: Vec<String> = dims.iter().map(|d| d.map_or("?".to_owned(), |d| d.to_string())).collect();
    format!("[{}]", dims.join(", "))
}

impl std::fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?} {}", self.kind(), self.dtype, sizes(&self.dims))
    }
}
