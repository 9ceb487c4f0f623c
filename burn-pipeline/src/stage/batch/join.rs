//! Joins the outputs of microbatches to the outputs of the batch.

use super::microbatches::Microbatches;
use super::split::MicrobatchError;
use crate::payload::{AnyTensor, Payload, PayloadPart};

impl Microbatches {
    /// Joins the outputs of all microbatches, in order. Each tensor is joined along its own dimension of `dims`, or
    /// along dimension 0 if `dims` is `None`.
    ///
    /// # Errors
    /// Returns [`MicrobatchError`] if the outputs differ in kinds, element types, ranks, variants, or in sizes other
    /// than along the dimension to join; if a tensor has no such dimension; or if `dims` does not have one entry per
    /// tensor.
    pub fn join(outputs: Vec<Payload>, dims: Option<&[usize]>) -> Result<Payload, MicrobatchError> {
        let mut columns: Vec<Vec<PayloadPart>> = Vec::new();
        for (row, output) in outputs.into_iter().enumerate() {
            let parts: Vec<PayloadPart> = output.into_parts().collect();
            if row == 0 {
                columns = parts.iter().map(|_| Vec::new()).collect();
            }
            if parts.len() != columns.len() {
                return Err(MicrobatchError::Structure);
            }
            columns.iter_mut().zip(parts).for_each(|(column, part)| column.push(part));
        }
        let tensors = columns.iter().filter(|column| matches!(column.first(), Some(PayloadPart::Tensor(_)))).count();
        if let Some(dims) = dims.filter(|dims| !columns.is_empty() && dims.len() != tensors) {
            return Err(MicrobatchError::JoinCount { tensors, dims: dims.len() });
        }
        let mut dims = dims.unwrap_or_default().iter().copied();
        let mut joined = Vec::with_capacity(columns.len());
        for column in columns {
            let is_tensor = matches!(column.first(), Some(PayloadPart::Tensor(_)));
            let dim = if is_tensor { dims.next().unwrap_or(0) } else { 0 };
            joined.push(join(column, dim)?);
        }
        Ok(Payload::from_parts(joined))
    }
}

/// Joins one part of all microbatches: tensors along `dim`; other parts must be equal.
fn join(column: Vec<PayloadPart>, dim: usize) -> Result<PayloadPart, MicrobatchError> {
    let mut tensors: Vec<AnyTensor> = Vec::new();
    let mut others = Vec::new();
    for part in column {
        match part {
            PayloadPart::Tensor(tensor) => tensors.push(tensor),
            other => others.push(other),
        }
    }
    let alike = tensors.iter().all(|tensor| tensors[0].joins(tensor, Some(dim)));
    let equal = others.iter().all(|other| match (&others[0], other) {
        (PayloadPart::Tag(one), PayloadPart::Tag(other)) => one == other,
        (PayloadPart::Host(one), PayloadPart::Host(other)) => one == other,
        _ => false,
    });
    match (others.pop().filter(|_| equal), tensors.is_empty()) {
        (Some(other), true) => Ok(other),
        (None, false) if equal && alike => {
            AnyTensor::cat(tensors, dim).map(PayloadPart::Tensor).ok_or(MicrobatchError::Structure)
        }
        _ => Err(MicrobatchError::Structure),
    }
}
