//! Reduces the tensors kept between a stage's forward and its backward.
//!
//! Autodiff keeps the inputs or outputs of each operation: for a softmax, the shifted scores, their exponentials and
//! the result. Some of these follow from others.
//!
//! 1. The backward may compute a function again that the forward computes (`exp` of the shifted scores). It reads the
//!    forward's result instead, if that is kept anyway or replaces its argument.
//! 2. The dividend (numerator) of a softmax or a layer norm equals the quotient times the divisor, which is one number
//!    per row. So the backward recomputes the dividend, if it is an exponential or a difference from a row's value, if
//!    the forward computes nothing from it but the divisor and the quotient, and if the divisor is positive for every
//!    input.
//!
//! Guarantees: the forward is unchanged. The backward's results change by the rounding of one multiplication for each
//! dividend; where a divisor overflows to infinity, they are NaN. At most one more number per row is kept. Only the
//! operations between a dividend and its quotient decide whether it is replaced, so a stage that is cut elsewhere
//! gives the same bits.
//!
//! In-Place Activated BatchNorm (Rota Bulò et al., arXiv:1712.02616) recovers its input from its output in the same
//! way.

use burn::backend::ir::{
    BinaryOpIr, FloatOperationIr, IrVisitorMut, NumericOperationIr, OperationIr, ScalarIr, ScalarOpIr, TensorId,
    TensorIr, TensorStatus, UnaryOpIr,
};
use burn::tensor::DType;
use std::collections::HashSet;

/// Rewrites a stage's operations, in order, so that fewer tensors are kept for its backward. `forward` marks the
/// operations of the forward, by index.
///
/// # Panics
/// Panics if `forward` is shorter than the operations.
pub fn hold_less(operations: &[OperationIr], forward: &[bool]) -> Vec<OperationIr> {
    let mut stage = Stage { operations: operations.to_vec(), forward: forward.to_vec() };
    stage.share_functions();
    stage.replace_dividends();
    stage.operations
}

struct Stage {
    operations: Vec<OperationIr>,
    forward: Vec<bool>,
}

impl Stage {
    /// Indices of the backward's operations that read a tensor.
    fn readers(&self, id: TensorId) -> Vec<usize> {
        let reads = |place: &usize| !self.forward[*place] && self.operations[*place].inputs().any(|read| read.id == id);
        (0..self.operations.len()).filter(reads).collect()
    }

    /// The operations of the forward.
    fn forward(&self) -> impl DoubleEndedIterator<Item = &OperationIr> {
        self.operations.iter().zip(&self.forward).filter(|(_, forward)| **forward).map(|(op, _)| op)
    }

    /// The operation of the forward that makes a tensor.
    fn maker(&self, id: TensorId) -> Option<&OperationIr> {
        self.forward().find(|op| op.outputs().any(|output| output.id == id))
    }

    /// Makes these operations read another tensor.
    fn read_instead(&mut self, places: &[usize], from: TensorId, to: TensorId) {
        for &place in places {
            self.operations[place].visit_mut(&mut Renamed { from, to });
        }
    }

    fn share_functions(&mut self) {
        for place in 0..self.operations.len() {
            if self.forward[place] {
                continue;
            }
            let Some((input, output)) = function(&self.operations[place]) else { continue };
            let (input, output) = (input.clone(), output.clone());
            let first = self.forward().find(|op| is_same_function(op, &self.operations[place]));
            let Some(first) = first.and_then(function).map(|(_, first)| first.clone()) else { continue };
            let freed = self.readers(input.id) == [place] && self.maker(input.id).is_some();
            if freed || !self.readers(first.id).is_empty() {
                // Nothing reads its output any more, so no program has it.
                self.read_instead(&self.readers(output.id), output.id, first.id);
            }
        }
    }

    fn replace_dividends(&mut self) {
        let mut next = next_id(&self.operations);
        let quotients = self.forward().filter_map(quotient).filter(|division| self.follows_from_quotient(division));
        for BinaryOpIr { lhs, rhs, out } in quotients.cloned().collect::<Vec<_>>() {
            let readers = self.readers(lhs.id);
            let Some(&first) = readers.first() else { continue };
            let again = TensorIr::uninit(TensorId::new(next), lhs.shape.clone(), lhs.dtype);
            next += 1;
            self.read_instead(&readers, lhs.id, again.id);
            let read = |tensor: TensorIr| TensorIr { status: TensorStatus::ReadOnly, ..tensor };
            let product = BinaryOpIr { lhs: read(out), rhs: read(rhs), out: again };
            let dtype = product.out.dtype;
            self.operations.insert(first, OperationIr::NumericFloat(dtype, NumericOperationIr::Mul(product)));
            self.forward.insert(first, false);
        }
    }

    /// Returns true if this is the quotient of a softmax or a norm, so that quotient and divisor give its dividend.
    fn follows_from_quotient(&self, BinaryOpIr { lhs, rhs, out }: &BinaryOpIr) -> bool {
        let is_row = |tensor: &TensorIr| {
            tensor.shape.num_dims() == out.shape.num_dims()
                && tensor.shape.last() == Some(&1)
                && out.shape.last() != Some(&1)
        };
        let begins = match self.maker(lhs.id) {
            Some(OperationIr::Float(_, FloatOperationIr::Exp(_))) => true,
            Some(OperationIr::NumericFloat(_, NumericOperationIr::Sub(op))) => is_row(&op.rhs),
            _ => false,
        };
        let divisor = self.needed_for(rhs.id);
        let ends = |op: &OperationIr| op.outputs().all(|made| made.id == out.id || divisor.contains(&made.id));
        begins
            && is_row(rhs)
            // In half precision the product would be as far from the dividend as two roundings.
            && lhs.dtype == DType::F32
            && lhs.shape == out.shape
            && self.forward().all(|op| ends(op) || op.inputs().all(|read| read.id != lhs.id))
            && self.sign(rhs.id) == Some(Sign::Positive)
    }

    /// A tensor, and all tensors from which the forward computes it.
    fn needed_for(&self, id: TensorId) -> HashSet<TensorId> {
        let mut needed = HashSet::from([id]);
        for op in self.forward().rev() {
            if op.outputs().any(|made| needed.contains(&made.id)) {
                needed.extend(op.inputs().map(|read| read.id));
            }
        }
        needed
    }

    /// The sign of a tensor's elements for every input, if known. Ignores exponentials that underflow.
    fn sign(&self, id: TensorId) -> Option<Sign> {
        use NumericOperationIr as Numeric;
        let squared = |op: &ScalarOpIr| scalar(op.rhs) == Some(2.0);
        match self.maker(id)? {
            OperationIr::Float(_, FloatOperationIr::Exp(_)) => Some(Sign::Positive),
            OperationIr::Float(_, FloatOperationIr::Sqrt(op)) => self.sign(op.input.id),
            OperationIr::Float(_, FloatOperationIr::PowfScalar(op)) if squared(op) => Some(Sign::NotNegative),
            OperationIr::NumericFloat(_, op) => match op {
                Numeric::PowiScalar(op) if squared(op) => Some(Sign::NotNegative),
                Numeric::Mul(op) if op.lhs.id == op.rhs.id => Some(Sign::NotNegative),
                Numeric::Abs(_) => Some(Sign::NotNegative),
                Numeric::SumDim(op) | Numeric::MeanDim(op) => self.sign(op.input.id),
                Numeric::AddScalar(op) if scalar(op.rhs)? > 0.0 => self.sign(op.lhs.id).map(|_| Sign::Positive),
                _ => None,
            },
            _ => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sign {
    Positive,
    NotNegative,
}

fn scalar(value: ScalarIr) -> Option<f64> {
    match value {
        ScalarIr::Float(value) => Some(value),
        ScalarIr::Int(value) => Some(value as f64),
        ScalarIr::UInt(value) => Some(value as f64),
        ScalarIr::Bool(_) => None,
    }
}

/// The argument and result of a function that takes longer than a read.
fn function(op: &OperationIr) -> Option<(&TensorIr, &TensorIr)> {
    use FloatOperationIr as Float;
    let OperationIr::Float(_, op) = op else { return None };
    match op {
        Float::Exp(op) | Float::Log(op) | Float::Erf(op) | Float::Tanh(op) | Float::Sin(op) | Float::Cos(op) => {
            let UnaryOpIr { input, out } = op;
            Some((input, out))
        }
        _ => None,
    }
}

fn is_same_function(one: &OperationIr, other: &OperationIr) -> bool {
    let (Some((input, _)), Some((same, _))) = (function(one), function(other)) else { return false };
    let (OperationIr::Float(_, one), OperationIr::Float(_, other)) = (one, other) else { return false };
    input.id == same.id && std::mem::discriminant(one) == std::mem::discriminant(other)
}

fn quotient(op: &OperationIr) -> Option<&BinaryOpIr> {
    if let OperationIr::NumericFloat(_, NumericOperationIr::Div(op)) = op { Some(op) } else { None }
}

/// The first id that no tensor of these operations has.
pub(crate) fn next_id(operations: &[OperationIr]) -> u64 {
    operations.iter().flat_map(OperationIr::nodes).map(|tensor| tensor.id.value() + 1).max().unwrap_or(0)
}

/// Gives a tensor another id in the operations that it visits.
pub(crate) struct Renamed {
    pub(crate) from: TensorId,
    pub(crate) to: TensorId,
}

impl IrVisitorMut for Renamed {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        if tensor.id == self.from {
            tensor.id = self.to;
        }
    }
}
