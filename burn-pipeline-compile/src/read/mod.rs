//! Reads Burn's operations as graph nodes.
//!
//! Guarantees: a node gives the results of Burn's Flex backend for the operation, up to the rounding that the crate
//! documents. Operations on types other than `f32`, `bf16`, `f16` and masks, those whose shapes or types do not fit
//! together ([`fits`]), and all that are not listed here stay interpreted.

mod convolutions;
mod fits;
mod sums;

use crate::graph::{FRESH, Graph, Map, Node, Op, Operand, Reduction, View, Writer, is_mask, is_number};
use crate::half::Half;
use crate::multiply::Bf16;
use burn::backend::ir::{
    ActivationOperationIr, BaseOperationIr, BinaryOpIr, BoolOperationIr, FloatOperationIr, NumericOperationIr,
    OperationIr, ScalarIr, ScalarOpIr, TensorId, TensorIr, UnaryOpIr,
};
use burn::tensor::{DType, Shape, Slice, bf16, f16};
use std::collections::HashSet;

/// Reads a program's operations; `kept` are the tensors that exist after it.
pub(crate) fn read(operations: &[OperationIr], kept: HashSet<TensorId>, rounded: Option<Bf16>) -> Graph {
    let mut reader = Reader { to: Writer { nodes: Vec::new(), fresh: FRESH } };
    for op in operations.iter().filter(|op| !matches!(op, OperationIr::Drop(_))) {
        if reader.known(op).is_none() {
            let inputs = op.inputs().cloned().map(Operand::Tensor).collect();
            let outputs = op.outputs().cloned().collect();
            reader.to.nodes.push(Node { op: Op::Interpret(Box::new(op.clone())), inputs, outputs });
        }
    }
    let Writer { nodes, fresh } = reader.to;
    Graph { nodes, kept, rounded, fresh }
}

struct Reader {
    to: Writer,
}

impl Reader {
    fn known(&mut self, op: &OperationIr) -> Option<()> {
        match op {
            OperationIr::BaseFloat(op) | OperationIr::BaseInt(op) | OperationIr::BaseBool(op) => self.base(op),
            OperationIr::NumericFloat(_, op) => self.numeric(op),
            OperationIr::Float(_, op) => self.float(op),
            OperationIr::Activation(op) => self.activation(op),
            OperationIr::Bool(op) => self.bool(op),
            OperationIr::Module(op) => self.module(op),
            _ => None,
        }
    }

    fn base(&mut self, op: &BaseOperationIr) -> Option<()> {
        use BaseOperationIr as Base;
        match op {
            Base::Reshape(op) => self.view(View::Reshape, &op.input, &op.out),
            Base::Expand(op) => self.view(View::Expand, &op.input, &op.out),
            Base::SwapDims(op) => {
                let mut dims: Vec<usize> = (0..op.input.shape.num_dims()).collect();
                dims.swap(op.dim1, op.dim2);
                self.view(View::Permute(dims), &op.input, &op.out)
            }
            Base::Permute(op) => self.view(View::Permute(op.axes.clone()), &op.input, &op.out),
            Base::Slice(op) => {
                let forward = |slice: &Slice| slice.step == 1;
                op.ranges.iter().all(forward).then_some(())?;
                self.view(View::Slice(op.ranges.clone()), &op.tensor, &op.out)
            }
            Base::Cat(op) => {
                let alike = op.tensors.iter().all(|tensor| tensor.dtype == op.out.dtype) && is_number(&op.out);
                (alike && fits::stand_beside(&op.tensors, op.dim, &op.out)).then_some(())?;
                self.to.nodes.push(Node::beside(op.tensors.iter(), op.dim, &op.out));
                Some(())
            }
            // The contents of an empty tensor are unspecified, so zeros will do.
            Base::Zeros(op) | Base::Empty(op) => self.fill(0.0, &op.out),
            Base::Ones(op) => self.fill(1.0, &op.out),
            Base::Cast(op) => self.cast(&op.input, &op.out),
            Base::MaskFill(op) => {
                let inputs = vec![tensor(&op.mask), exact(op.value, &op.out), tensor(&op.tensor)];
                self.push(Map::Select, inputs, &op.out)
            }
            Base::MaskWhere(op) => self.map(Map::Select, [&op.mask, &op.value, &op.tensor], &op.out),
            Base::Equal(op) => self.binary(Map::Equal, op),
            Base::NotEqual(op) => self.binary(Map::NotEqual, op),
            Base::EqualElem(op) => self.compare(Map::Equal, op),
            Base::NotEqualElem(op) => self.compare(Map::NotEqual, op),
            _ => None,
        }
    }

    fn numeric(&mut self, op: &NumericOperationIr) -> Option<()> {
        use NumericOperationIr as Numeric;
        match op {
            Numeric::Add(op) => self.binary(Map::Add, op),
            Numeric::Sub(op) => self.binary(Map::Sub, op),
            Numeric::Mul(op) => self.binary(Map::Mul, op),
            Numeric::Div(op) => self.binary(Map::Div, op),
            Numeric::AddScalar(op) => self.scalar(Map::Add, op),
            Numeric::SubScalar(op) => self.scalar(Map::Sub, op),
            Numeric::MulScalar(op) => self.scalar(Map::Mul, op),
            Numeric::DivScalar(op) => self.scalar(Map::Div, op),
            Numeric::Abs(op) => self.unary(Map::Abs, op),
            Numeric::Neg(op) => self.unary(Map::Neg, op),
            Numeric::Sign(op) => self.unary(Map::Sign, op),
            Numeric::ClampMin(op) => self.unrounded(Map::AtLeast, op),
            Numeric::ClampMax(op) => self.unrounded(Map::AtMost, op),
            Numeric::PowiScalar(op) => self.power(op),
            Numeric::Greater(op) => self.binary(Map::Greater, op),
            Numeric::GreaterEqual(op) => self.binary(Map::GreaterEqual, op),
            Numeric::Lower(op) => self.binary(Map::Lower, op),
            Numeric::LowerEqual(op) => self.binary(Map::LowerEqual, op),
            Numeric::GreaterElem(op) => self.compare(Map::Greater, op),
            Numeric::GreaterEqualElem(op) => self.compare(Map::GreaterEqual, op),
            Numeric::LowerElem(op) => self.compare(Map::Lower, op),
            Numeric::LowerEqualElem(op) => self.compare(Map::LowerEqual, op),
            Numeric::Full(op) => self.fill(number(op.value), &op.out),
            Numeric::SumDim(op) => self.reduce(Reduction::Sum, &op.input, &[op.axis], &op.out, false),
            Numeric::SumDims(op) => self.reduce(Reduction::Sum, &op.input, &op.axes, &op.out, false),
            Numeric::MeanDim(op) => self.reduce(Reduction::Sum, &op.input, &[op.axis], &op.out, true),
            Numeric::MaxDim(op) if fits::has_extremes(&op.input, op.axis, &op.out) => {
                self.reduce(Reduction::Max, &op.input, &[op.axis], &op.out, false)
            }
            Numeric::MinDim(op) if fits::has_extremes(&op.input, op.axis, &op.out) => {
                self.reduce(Reduction::Min, &op.input, &[op.axis], &op.out, false)
            }
            Numeric::Sum(op) => self.whole(&op.input, &op.out, false),
            Numeric::Mean(op) => self.whole(&op.input, &op.out, true),
            _ => None,
        }
    }

    fn float(&mut self, op: &FloatOperationIr) -> Option<()> {
        use FloatOperationIr as Float;
        match op {
            Float::Exp(op) => self.unary(Map::Exp, op),
            Float::Log(op) => self.unary(Map::Log, op),
            Float::Log1p(op) => self.unary(Map::Log1p, op),
            Float::Erf(op) => self.unary(Map::Erf, op),
            Float::Sqrt(op) => self.unary(Map::Sqrt, op),
            Float::Sin(op) => self.unary(Map::Sin, op),
            Float::Cos(op) => self.unary(Map::Cos, op),
            Float::Tanh(op) => self.unary(Map::Tanh, op),
            Float::Floor(op) => self.unary(Map::Floor, op),
            Float::Ceil(op) => self.unary(Map::Ceil, op),
            Float::Recip(op) => self.unary(Map::Recip, op),
            Float::PowfScalar(op) => self.power(op),
            Float::Matmul(op)
                if is_number(&op.out)
                    && [&op.lhs, &op.rhs].into_iter().all(|operand| operand.dtype == op.out.dtype)
                    && fits::multiplies(&op.lhs, &op.rhs, &op.out) =>
            {
                self.to.nodes.push(Node::of(Op::Matmul, [&op.lhs, &op.rhs], &op.out));
                Some(())
            }
            _ => None,
        }
    }

    fn activation(&mut self, op: &ActivationOperationIr) -> Option<()> {
        use ActivationOperationIr as Activation;
        match op {
            Activation::Relu(op) => self.unary(Map::Relu, op),
            Activation::Gelu(op) => self.unary(Map::Gelu, op),
            Activation::Sigmoid(op) => self.unary(Map::Sigmoid, op),
            Activation::LeakyRelu(op) => self.unrounded(Map::LeakyRelu, op),
            Activation::ReluBackward(op) => self.binary(Map::ReluBackward, op),
            Activation::GeluBackward(op) => self.binary(Map::GeluBackward, op),
            Activation::SigmoidBackward(op) => self.binary(Map::SigmoidBackward, op),
            _ => None,
        }
    }

    fn bool(&mut self, op: &BoolOperationIr) -> Option<()> {
        match op {
            BoolOperationIr::IntoFloat(op) => self.map(Map::Copy, [&op.input], &op.out),
            BoolOperationIr::Not(op) => self.unary(Map::Not, op),
            BoolOperationIr::And(op) => self.binary(Map::Mul, op),
            BoolOperationIr::Or(op) => self.binary(Map::AtLeast, op),
            _ => None,
        }
    }

    fn unary(&mut self, map: Map, op: &UnaryOpIr) -> Option<()> {
        self.map(map, [&op.input], &op.out)
    }

    fn binary(&mut self, map: Map, op: &BinaryOpIr) -> Option<()> {
        self.map(map, [&op.lhs, &op.rhs], &op.out)
    }

    fn scalar(&mut self, map: Map, op: &ScalarOpIr) -> Option<()> {
        self.push(map, vec![tensor(&op.lhs), self::scalar(op.rhs, &op.lhs)], &op.out)
    }

    fn compare(&mut self, map: Map, op: &ScalarOpIr) -> Option<()> {
        self.push(map, vec![tensor(&op.lhs), exact(op.rhs, &op.lhs)], &op.out)
    }

    /// A scalar that Flex does not round to the tensor's type.
    fn unrounded(&mut self, map: Map, op: &ScalarOpIr) -> Option<()> {
        self.push(map, vec![tensor(&op.lhs), Operand::Scalar(number(op.rhs))], &op.out)
    }

    /// A change of the element type; a copy if there is none.
    fn cast(&mut self, input: &TensorIr, out: &TensorIr) -> Option<()> {
        let same = input.dtype == out.dtype;
        (same || is_number(input) && is_number(out)).then(|| self.map(Map::Copy, [input], out))?
    }

    /// Reads a power with a constant exponent; computed as in Flex if the exponent is a small whole number.
    fn power(&mut self, op: &ScalarOpIr) -> Option<()> {
        let exponent = number(op.rhs);
        let map = match exponent {
            1.0 => Map::Copy,
            2.0 => Map::Square,
            3.0 => Map::Cube,
            -1.0 => Map::Recip,
            // The gradient of a reciprocal. Flex rounds the square to the tensor's type.
            -2.0 => {
                let square = self.to.tensor(op.out.shape.clone(), op.out.dtype);
                self.map(Map::Square, [&op.lhs], &square)?;
                return self.map(Map::Recip, [&square], &op.out);
            }
            _ => return self.scalar(Map::Power, op),
        };
        self.map(map, [&op.lhs], &op.out)
    }

    fn map<const N: usize>(&mut self, map: Map, inputs: [&TensorIr; N], out: &TensorIr) -> Option<()> {
        self.push(map, inputs.into_iter().map(tensor).collect(), out)
    }

    fn push(&mut self, map: Map, inputs: Vec<Operand>, out: &TensorIr) -> Option<()> {
        let known = |tensor: &TensorIr| (is_number(tensor) || is_mask(tensor)) && !tensor.shape.is_empty();
        let all: Vec<&TensorIr> = inputs.iter().filter_map(Operand::tensor).chain([out]).collect();
        let fits = all.iter().all(|tensor| known(tensor) && fits::broadcasts(tensor, out));
        let mut numbers = all.iter().filter(|tensor| is_number(tensor)).map(|tensor| tensor.dtype);
        let first = numbers.next();
        let alike = map == Map::Copy || numbers.all(|dtype| Some(dtype) == first);
        (fits && alike).then(|| self.to.nodes.push(Node::new(Op::Map(map), inputs, out.clone())))
    }

    fn view(&mut self, view: View, input: &TensorIr, out: &TensorIr) -> Option<()> {
        let fits = fits::views(&view, input, out) && input.dtype == out.dtype;
        fits.then(|| self.to.nodes.push(Node::of(Op::View(view), [input], out)))
    }

    fn fill(&mut self, value: f32, out: &TensorIr) -> Option<()> {
        let fill = Op::Fill(rounded(value, out));
        is_number(out).then(|| self.to.nodes.push(Node::of(fill, [], out)))
    }

    /// An `f32` tensor of this shape.
    fn between(&mut self, shape: Shape) -> TensorIr {
        self.to.tensor(shape, DType::F32)
    }
}

fn tensor(tensor: &TensorIr) -> Operand {
    Operand::Tensor(tensor.clone())
}

/// The value that Flex takes for a scalar that it compares with this tensor, or fills it with. It rounds `f64` by the
/// crate `half`, which for `bf16`, and for `f16` on some processors, ignores the last 32 bits, and so rounds some
/// numbers just above a tie down. So the same functions are called here.
fn exact(value: ScalarIr, tensor: &TensorIr) -> Operand {
    let ScalarIr::Float(float) = value else { return scalar(value, tensor) };
    Operand::Scalar(match Half::of(tensor) {
        Some(Half::Bf16) => bf16::from_f64(float).to_f32(),
        Some(Half::F16) => f16::from_f64(float).to_f32(),
        None => float as f32,
    })
}

/// The value that Flex takes for a scalar of other operations on this tensor.
fn scalar(value: ScalarIr, tensor: &TensorIr) -> Operand {
    Operand::Scalar(rounded(number(value), tensor))
}

fn number(value: ScalarIr) -> f32 {
    match value {
        ScalarIr::Float(value) => value as f32,
        ScalarIr::Int(value) => value as f32,
        ScalarIr::UInt(value) => value as f32,
        ScalarIr::Bool(value) => f32::from(u8::from(value)),
    }
}

fn rounded(value: f32, like: &TensorIr) -> f32 {
    Half::of(like).map_or(value, |half| half.rounded(value))
}
